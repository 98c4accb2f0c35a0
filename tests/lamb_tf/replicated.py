"""One small problem, trained by a loop of its own on any strategy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.lamb_tf.conftest import Host

BATCH = 8
STEPS = 4
SHAPES = {"dense_kernel": (6, 5), "dense_bias": (5,), "out_kernel": (5, 1)}


def data(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Returns the global batches of all steps."""
    x = np.random.default_rng(1).normal(size=(steps, BATCH, 6))
    y = x @ np.arange(6)[:, None] + 3.0
    return x.astype(np.float32), y.astype(np.float32)


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def wrap_eager(step: Callable) -> Callable:
    return step


def wrap_xla(step: Callable) -> Callable:
    return tf.function(step, jit_compile=True)


class Loop:
    """Variables, their optimizer, and a step over micro-batches.

    Attributes:
        variables: By name.
        optimizer: What `make_optimizer` returned, built.
        loss_factor: Multiplies the loss; to be set before the first step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        host: Host,
        make_optimizer: Callable[[], Any],
        *,
        dtype: str = "float32",
        micro_steps: int = 1,
        wrap: Callable = tf.function,
    ):
        self._strategy = strategy
        self._micro_steps = micro_steps
        self.loss_factor = 1.0
        with strategy.scope():
            self.variables = {
                name: host.variable(value, name, dtype)
                for name, value in start().items()
            }
            self.optimizer = make_optimizer()
            self.optimizer.build(list(self.variables.values()))
        self._step = wrap(self._make_step())

    def _make_step(self):
        variables = self.variables
        # Gradients are summed over replicas, and averaged over micro-steps.
        size = BATCH // self._micro_steps

        def replica(x, y):
            with tf.GradientTape() as tape:
                k, b, o = (
                    tf.cast(tf.convert_to_tensor(v), tf.float32)
                    for v in variables.values()
                )
                error = tf.matmul(tf.tanh(tf.matmul(x, k) + b), o) - y
                loss = tf.reduce_sum(tf.square(error)) / size
                loss *= self.loss_factor
            watched = [self._native(v) for v in variables.values()]
            grads = tape.gradient(loss, watched)
            self.optimizer.apply_gradients(
                list(zip(grads, variables.values(), strict=True))
            )

        return lambda x, y: self._strategy.run(replica, args=(x, y))

    @staticmethod
    def _native(variable):
        return (
            getattr(variable, "value", None)
            if _is_keras_3(variable)
            else (variable)
        )

    def graph(self) -> tf.Graph:
        """Returns the graph of a micro-step."""
        x, y = (array[0][: BATCH // self._micro_steps] for array in data(1))
        shares = self._share(x), self._share(y)
        return self._step.get_concrete_function(*shares).graph

    def _share(self, array):
        count = self._strategy.num_replicas_in_sync
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(
                np.split(array, count)[context.replica_id_in_sync_group]
            )
        )

    def micro_step(self, x: np.ndarray, y: np.ndarray) -> None:
        """Makes one micro-step; each replica has its share of the rows."""
        self._step(self._share(x), self._share(y))

    def train(self, steps: int = STEPS) -> dict[str, np.ndarray]:
        """Returns the weights after some steps."""
        for x, y in zip(*data(steps), strict=True):
            for part in zip(
                np.split(x, self._micro_steps),
                np.split(y, self._micro_steps),
                strict=True,
            ):
                self.micro_step(*part)
        return self.weights()

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the weights, which are the same on every replica."""
        return {
            name: self.value(variable)
            for name, variable in self.variables.items()
        }

    def value(self, variable: Any) -> np.ndarray:
        first, *others = (
            tf.cast(part, tf.float32).numpy()
            for part in self._strategy.experimental_local_results(
                self._native(variable)
            )
        )
        for other in others:
            np.testing.assert_array_equal(first, other)
        return first


def _is_keras_3(variable):
    return isinstance(getattr(variable, "value", None), tf.Variable)


def assert_same(one: dict, other: dict, rtol: float, atol: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(
            other[name], one[name], rtol=rtol, atol=atol, err_msg=name
        )
