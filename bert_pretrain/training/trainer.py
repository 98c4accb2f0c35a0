"""The inner loops, as orbit runs them: training steps and evaluation."""

import numpy as np
import orbit
import tensorflow as tf
import tf_keras

from bert_pretrain.modeling import pretrainer
from bert_pretrain.training.step import METRICS, TrainStep


class PretrainTrainer(orbit.StandardTrainer):
    """Runs optimizer steps of one phase after another in a compiled loop."""

    def __init__(self, strategy, model, optimizer):
        super().__init__(train_dataset=None)
        self._strategy = strategy
        self._step = TrainStep(model, optimizer)
        self._metrics = {
            name: tf_keras.metrics.Mean(name, dtype=tf.float32)
            for name in METRICS
        }
        self._phase = None

    def start_phase(
        self, dataset, global_batch_size: int, phase_index: int
    ) -> None:
        """Takes the batches of a phase; its step is compiled anew."""
        self.train_dataset = dataset
        self._phase = global_batch_size, phase_index
        self._train_loop_fn = None

    def train_loop_begin(self):
        """Starts the means over the loop's steps."""
        for metric in self._metrics.values():
            metric.reset_state()

    def train_step(self, iterator):
        """Computes one optimizer step on every replica."""

        def on_replica(batch):
            metrics = self._step(batch, *self._phase)
            for name, metric in self._metrics.items():
                metric.update_state(metrics[name])

        self._strategy.run(on_replica, args=(next(iterator),))

    def train_loop_end(self):
        """Returns the means over the loop's steps."""
        return {name: metric.result() for name, metric in self._metrics.items()}


class HeldOutEvaluator(orbit.StandardEvaluator):
    """Means over all held-out examples of the current phase's length."""

    # What is averaged, and over what.
    _MEANS = {
        "mlm_loss": "masked_tokens",
        "mlm_accuracy": "masked_tokens",
        "unigram_loss": "masked_tokens",
        "nsp_loss": "examples",
        "nsp_accuracy": "examples",
    }
    _COUNTS = ("masked_tokens", "examples")

    def __init__(self, strategy, model, token_counts: np.ndarray):
        """Prepares the unigram baseline.

        Args:
          strategy: Where to run.
          model: The model under evaluation.
          token_counts: int64 [vocab_size], the training text's tokens. One
            is added to each, so an unseen token has a finite loss.
        """
        super().__init__(eval_dataset=None)
        self._strategy = strategy
        self._model = model
        smoothed = token_counts.astype(np.float64) + 1.0
        self._token_loss = (-np.log(smoothed / smoothed.sum())).astype(
            np.float32
        )
        self._sums = {
            name: tf_keras.metrics.Sum(name)
            for name in (*self._MEANS, *self._COUNTS)
        }

    def start(self, dataset) -> None:
        """Takes the held-out batches of a phase."""
        self.eval_dataset = dataset
        self._eval_loop_fn = None

    def eval_begin(self):
        """Starts the sums."""
        for metric in self._sums.values():
            metric.reset_state()

    def eval_step(self, iterator):
        """Adds one batch."""

        def on_replica(batch):
            mlm_weights = batch["masked_lm_weights"]
            nsp_weights = batch["example_weights"]
            sums = pretrainer.losses(
                self._model, batch, mlm_weights, nsp_weights, training=False
            )
            unigram = tf.gather(self._token_loss, batch["masked_lm_ids"])
            values = {
                **sums._asdict(),
                "unigram_loss": tf.reduce_sum(unigram * mlm_weights),
                "masked_tokens": tf.reduce_sum(mlm_weights),
                "examples": tf.reduce_sum(nsp_weights),
            }
            for name, metric in self._sums.items():
                metric.update_state(values[name])

        self._strategy.run(on_replica, args=(next(iterator),))

    def eval_end(self, *unused_state):
        """Returns the means, and how many tokens and examples they cover."""
        sums = {n: float(m.result()) for n, m in self._sums.items()}
        means = {n: sums[n] / sums[count] for n, count in self._MEANS.items()}
        return {**means, **{n: int(sums[n]) for n in self._COUNTS}}
