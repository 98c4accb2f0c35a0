"""The masked-LM loss with its gradient, without keeping logits around.

In a small model two thirds of a training step is this head: bias, casts,
softmax and arg-max over 30,522 classes. The gradient of softmax cross-entropy
is known where the loss is, so the forward pass computes both from one
softmax; the one-hot part of the gradient touches one row per prediction and is
a gather and a scatter; accuracy compares the label's logit with the maximum
the softmax needs anyway.
"""

from typing import NamedTuple

import tensorflow as tf


class MlmSums(NamedTuple):
    """Weighted sums over the predictions of a batch, float32 scalars."""

    loss: tf.Tensor
    hits: tf.Tensor


def mlm_sums(
    hidden: tf.Tensor,
    table: tf.Tensor,
    bias: tf.Tensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
) -> MlmSums:
    """Sums cross-entropy and hits of the masked tokens.

    Args:
      hidden: [n, width], transformed encoder outputs at the predictions, in
        the dtype of the matrix products.
      table: [vocab_size, width], output embedding, same dtype.
      bias: float32 [vocab_size].
      labels: int32 [n], ids in [0, vocab_size).
      weights: float32 [n], 0 for unused predictions.

    Returns:
      Sums; `loss` is differentiable in `hidden`, `table` and `bias`. Logits
      are added up and normalised in float32.
    """
    loss, hits = _loss_and_hits(hidden, table, bias, labels, weights)
    return MlmSums(loss, hits)


@tf.custom_gradient
def _loss_and_hits(hidden, table, bias, labels, weights):
    logits = tf.matmul(hidden, table, transpose_b=True)
    loss, hits, probabilities = _softmax(logits, bias, labels, weights)

    def grad(upstream, _):
        # d loss / d logits = weights * (softmax - one_hot(labels)).
        scaled = hidden * tf.cast(weights[:, tf.newaxis], hidden.dtype)
        d_hidden = tf.matmul(probabilities, table) - tf.gather(
            table, labels
        ) * tf.cast(weights[:, tf.newaxis], table.dtype)
        d_table = tf.matmul(probabilities, hidden, transpose_a=True)
        d_table = tf.tensor_scatter_nd_sub(
            d_table, labels[:, tf.newaxis], scaled
        )
        ones = tf.ones([1, probabilities.shape[0]], probabilities.dtype)
        d_bias = tf.cast(tf.matmul(ones, probabilities)[0], tf.float32)
        d_bias = tf.tensor_scatter_nd_sub(
            d_bias, labels[:, tf.newaxis], weights
        )
        return (
            d_hidden * tf.cast(upstream, d_hidden.dtype),
            d_table * tf.cast(upstream, d_table.dtype),
            d_bias * upstream,
            None,
            None,
        )

    return (loss, hits), grad


@tf.function(jit_compile=True, autograph=False)
def _softmax(logits, bias, labels, weights):
    """One fused pass: loss and hit sums, weighted probabilities [n, vocab]."""
    shifted = tf.cast(logits, tf.float32) + bias
    label_logit = tf.gather(shifted, labels, batch_dims=1)
    maximum = tf.reduce_max(shifted, axis=1)
    exponent = tf.exp(shifted - maximum[:, tf.newaxis])
    total = tf.reduce_sum(exponent, axis=1)
    losses = tf.math.log(total) + maximum - label_logit
    hits = tf.cast(label_logit >= maximum, tf.float32)
    probabilities = exponent * (weights / total)[:, tf.newaxis]
    return (
        tf.reduce_sum(weights * losses),
        tf.reduce_sum(weights * hits),
        tf.cast(probabilities, logits.dtype),
    )
