"""Dropout whose mask is a function of (seed, layer, example index).

Keras draws dropout from a state that a restart, another number of replicas or
another accumulation moves along differently. Here each example of the stream
owns its mask, so all of these compute the same update.
"""

import contextlib
import threading

import tensorflow as tf
import tf_keras

from bert_pretrain import random_bits

_scope = threading.local()  # MirroredStrategy traces a thread per replica.


@contextlib.contextmanager
def keyed_by(stream: int, first_index: tf.Tensor):
    """Names the examples of the micro-batch computed inside.

    Args:
      stream: The phase, see `random_bits.example_bits`.
      first_index: int64 scalar, stream index of the batch's first example.
    """
    _scope.examples = stream, first_index
    try:
        yield
    finally:
        _scope.examples = None


class ExampleDropout(tf_keras.layers.Layer):
    """Inverted dropout in place of `tf_keras.layers.Dropout`.

    Args:
      rate: Share of the values that is zeroed, in steps of 2^-16.
      key: From `random_bits.stream_key`, one per layer.
    """

    def __init__(self, rate: float, key: int, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self._key = key

    def call(self, inputs, training=None):
        """Drops values of `inputs` [examples, ...] while training."""
        if not training or not self.rate:
            return inputs
        scope = getattr(_scope, "examples", None)
        if scope is None:
            raise RuntimeError(
                f"{self.name} drops values in training: call the model inside "
                "dropout.keyed_by(stream, first_index)."
            )
        examples, *shape = inputs.shape
        values = 1
        for dim in shape:
            values *= dim
        words = random_bits.example_bits(
            self._key, *scope, examples, -(-values // 2)
        )
        # Two 16-bit draws per word halve the cost of the random numbers.
        draws = tf.reshape(tf.bitcast(words, tf.uint16), [examples, -1])
        threshold = round(self.rate * 2**16)
        # uint16 has no comparison kernel on every device; int32 has.
        keep = tf.cast(draws[:, :values], tf.int32) >= threshold
        keep = tf.reshape(keep, [examples, *shape])
        scale = tf.cast(2**16 / (2**16 - threshold), inputs.dtype)
        return tf.where(keep, inputs * scale, tf.zeros([], inputs.dtype))


def replace_dropout(model: tf_keras.Model, seed: int) -> int:
    """Puts `ExampleDropout` in the place of every Keras dropout of a model.

    Args:
      model: A built model; its layers hold their dropout as attributes.
      seed: The run's seed.

    Returns:
      Number of layers replaced.
    """
    replaced = 0
    for layer in list(model.submodules):
        for name, value in list(vars(layer).items()):
            if type(value) is tf_keras.layers.Dropout:
                key = random_bits.stream_key(seed, f"dropout/{replaced}")
                setattr(
                    layer,
                    name,
                    ExampleDropout(value.rate, key, name=value.name),
                )
                replaced += 1
    return replaced
