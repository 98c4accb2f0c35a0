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
    dtype: tf.DType = tf.float32,
) -> MlmSums:
    """Sums cross-entropy and hits of the masked tokens.

    Args:
      hidden: float32 [n, width], transformed encoder outputs at the
        predictions.
      table: float32 [vocab_size, width], output embedding.
      bias: float32 [vocab_size].
      labels: int32 [n], ids in [0, vocab_size).
      weights: float32 [n], 0 for unused predictions.
      dtype: Of the matrix products and of the logits between them; all else
        is computed in float32.

    Returns:
      Sums; `loss` is differentiable in `hidden`, `table` and `bias`.
    """

    @tf.custom_gradient
    def loss_and_hits(hidden, table, bias):
        low_hidden, low_table = tf.cast(hidden, dtype), tf.cast(table, dtype)
        logits = tf.matmul(low_hidden, low_table, transpose_b=True)
        loss, hits, expected = _softmax(logits, bias, labels, weights)

        def grad(upstream, _):
            # d loss / d logits = weights * (softmax - one_hot(labels)). The
            # second part is added up in float32: in bfloat16 a sum over a
            # frequent token's many predictions falls short.
            rows, scale = labels[:, tf.newaxis], weights[:, tf.newaxis]
            d_hidden = tf.matmul(expected, low_table)
            d_hidden = tf.cast(d_hidden, tf.float32)
            d_hidden -= scale * tf.gather(table, labels)
            d_table = tf.matmul(expected, low_hidden, transpose_a=True)
            d_table = tf.tensor_scatter_nd_sub(
                tf.cast(d_table, tf.float32), rows, scale * hidden
            )
            d_bias = tf.reduce_sum(tf.cast(expected, tf.float32), axis=0)
            d_bias = tf.tensor_scatter_nd_sub(d_bias, rows, weights)
            return d_hidden * upstream, d_table * upstream, d_bias * upstream

        return (loss, hits), grad

    return MlmSums(*loss_and_hits(hidden, table, bias))


@tf.function(jit_compile=True, autograph=False)
def _softmax(logits, bias, labels, weights):
    """One fused pass: loss and hit sums, weighted softmax [n, vocab_size]."""
    shifted = tf.cast(logits, tf.float32) + bias
    label_logit = tf.gather(shifted, labels, batch_dims=1)
    maximum = tf.reduce_max(shifted, axis=1)
    exponent = tf.exp(shifted - maximum[:, tf.newaxis])
    total = tf.reduce_sum(exponent, axis=1)
    losses = tf.math.log(total) + maximum - label_logit
    hits = tf.cast(label_logit >= maximum, tf.float32)
    expected = exponent * (weights / total)[:, tf.newaxis]
    return (
        tf.reduce_sum(weights * losses),
        tf.reduce_sum(weights * hits),
        tf.cast(expected, logits.dtype),
    )
