"""One optimizer step on one replica: the large batch, exactly.

forward, backward, accumulate → all-reduce once → clip by global norm → LAMB.
The losses are divided by the counts of the *global* batch before the
backward pass, so any split into replicas and micro-batches gives the same
gradient, whatever the number of masked tokens in each part.
"""

import tensorflow as tf

from bert_pretrain.modeling import dropout, pretrainer

METRICS = (
    "loss",
    "mlm_loss",
    "nsp_loss",
    "mlm_accuracy",
    "nsp_accuracy",
    "grad_norm",
)


class TrainStep:
    """Computes one update in replica context."""

    def __init__(self, model, optimizer):
        self._model = model
        self._optimizer = optimizer
        self._variables = pretrainer.pretraining_variables(model)
        optimizer.build(self._variables)

    def __call__(
        self,
        batch: dict[str, tf.Tensor],
        global_batch_size: int,
        phase_index: int,
    ) -> dict[str, tf.Tensor]:
        """Updates the model by one global batch.

        Args:
          batch: This replica's features, [accumulation, micro_batch, ...].
          global_batch_size: Sequences of the step over all replicas.
          phase_index: Which phase; it keys the dropout with the examples.

        Returns:
          `METRICS`, float32 scalars of the global batch, equal on every
          replica. `grad_norm` is the global norm before clipping.
        """
        masked_tokens = _all_reduce(
            [tf.reduce_sum(batch["masked_lm_weights"])]
        )[0]
        batch = dict(batch)
        mlm_weights = tf.math.divide_no_nan(
            batch["masked_lm_weights"], masked_tokens
        )
        nsp_weights = tf.fill(
            batch["next_sentence_labels"].shape, 1.0 / global_batch_size
        )

        def micro_batch(i):
            features = {name: value[i] for name, value in batch.items()}
            with dropout.keyed_by(phase_index, features["first_index"]):
                return self._gradients(features, mlm_weights[i], nsp_weights[i])

        gradients, sums = _accumulate(
            micro_batch, batch["first_index"].shape[0]
        )
        *gradients, sums = _all_reduce([*gradients, tf.stack(sums)])
        grad_norm = tf.linalg.global_norm(gradients)
        # Already reduced over the replicas: LAMB clips the global gradient.
        self._optimizer.apply_gradients(
            zip(gradients, self._variables, strict=True),
            skip_gradients_aggregation=True,
        )
        mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy = tf.unstack(sums)
        return {
            "loss": mlm_loss + nsp_loss,
            "mlm_loss": mlm_loss,
            "nsp_loss": nsp_loss,
            "mlm_accuracy": mlm_accuracy,
            "nsp_accuracy": nsp_accuracy,
            "grad_norm": grad_norm,
        }

    def _gradients(self, batch, mlm_weights, nsp_weights):
        with tf.GradientTape() as tape:
            sums = pretrainer.losses(
                self._model, batch, mlm_weights, nsp_weights, training=True
            )
            loss = sums.mlm_loss + sums.nsp_loss
        gradients = tape.gradient(loss, self._variables)
        return [
            tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients
        ], list(sums)


def _accumulate(micro_batch, steps: int):
    """Adds up `micro_batch(i)` over i in a compiled loop."""
    first = micro_batch(0)
    if steps == 1:
        return first

    def body(i, total):
        return i + 1, tf.nest.map_structure(tf.add, total, micro_batch(i))

    _, total = tf.while_loop(
        lambda i, _: i < steps,
        body,
        (1, first),
        # One micro-batch's activations at a time are what fits.
        parallel_iterations=1,
        maximum_iterations=steps - 1,
    )
    return total


def _all_reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
