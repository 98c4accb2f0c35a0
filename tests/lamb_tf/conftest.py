"""Both Kerases side by side, and logical CPUs for the strategies."""

import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402

import lamb_tf.keras  # noqa: E402
import lamb_tf.tf_keras  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Host:
    """One Keras and our optimizers for it."""

    name: str
    keras: ModuleType
    LAMB: type
    LARS: type

    def variable(self, value: Any, name: str, dtype: str = "float32") -> Any:
        value = tf.cast(value, dtype)
        if self.name == "keras":
            return keras.Variable(value, name=name, dtype=dtype)
        return tf.Variable(value, name=name)

    def checkpoint(self, **objects: Any) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(**objects)


HOSTS = {
    name: Host(name, library, ours.LAMB, ours.LARS)
    for name, library, ours in [
        ("keras", keras, lamb_tf.keras),
        ("tf_keras", tf_keras, lamb_tf.tf_keras),
    ]
}


@pytest.fixture(params=HOSTS)
def host(request) -> Host:
    return HOSTS[request.param]


@pytest.fixture(params=["eager", "graph", "xla"])
def run(request):
    """Wraps a step to run eagerly, as a graph or as one XLA program."""
    if request.param == "eager":
        return lambda step: step
    return lambda step: tf.function(step, jit_compile=request.param == "xla")


@pytest.fixture(scope="session")
def cpus() -> list[str]:
    # tests/conftest.py asks for four.
    return [d.name for d in tf.config.list_logical_devices("CPU")]


@pytest.fixture(scope="session")
def two_cpus(cpus) -> list[str]:
    return cpus[:2]


class Mirrored(tf.distribute.MirroredStrategy):
    """Keeps its collectives apart from those of every other strategy.

    TensorFlow numbers the collectives of every strategy alike, and two
    in one process collide on shapes.
    """

    _bases = itertools.count(1_000_000, 10_000)

    def __init__(self, devices: list[str]):
        self._collective_key_base = next(self._bases)
        super().__init__(devices)


@pytest.fixture(scope="session")
def mirrored(cpus) -> Callable[[int], tf.distribute.Strategy]:
    """Returns, by the number of replicas, a strategy or the default one."""
    strategies = {0: tf.distribute.get_strategy()}

    def get(count: int) -> tf.distribute.Strategy:
        if count not in strategies:
            strategies[count] = Mirrored(cpus[:count])
        return strategies[count]

    return get


@pytest.fixture(scope="session")
def replicas(mirrored) -> tf.distribute.Strategy:
    return mirrored(2)
