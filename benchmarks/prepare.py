"""Every optimizer that is timed, brought to one interface.

Each function imports its framework itself: TensorFlow and PyTorch both
carry LLVM, and one process cannot hold both.
"""

import dataclasses
import importlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.shapes import Shapes

# The rate is high enough for a bfloat16 weight, which has 8 bits, to move
# at each step: what then stands still never moves.
LEARNING_RATE, WEIGHT_DECAY = 1e-2, 0.01


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Weights, gradients and an optimizer, ready to step.

    Attributes:
        step: Updates all weights once and returns when it is done.
        weights: Returns the weights, in any type that NumPy can read.
        slots: Returns the optimizer's own arrays, likewise.
        traces: Returns how often Python was traced; `None` if never.
    """

    step: Callable[[], None]
    weights: Callable[[], list[Any]]
    slots: Callable[[], list[Any]]
    traces: Callable[[], int] | None = None


def arrays(shapes: Shapes, dtype: str, scale: float) -> list[np.ndarray]:
    """Returns normal numbers of a standard deviation, the same each time.

    A block of 2**20 is repeated: drawing 335M takes longer than a step.
    """
    block = np.random.default_rng(0).normal(0.0, scale, 2**20)
    block = block.astype(_numpy_dtype(dtype))
    return [np.resize(block, shape) for shape in shapes]


def _numpy_dtype(dtype):
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def _tensorflow(make, variable, shapes, dtype, mode):
    import tensorflow as tf

    traces = _count_traces()
    variables = [variable(a) for a in arrays(shapes, dtype, 0.02)]
    grads = [tf.constant(a) for a in arrays(shapes, dtype, 1.0)]
    optimizer = make()

    def step(grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    compiled = step
    if mode != "eager":
        compiled = tf.function(step, jit_compile=mode == "xla")

    def slots():
        found = optimizer.variables
        return found() if callable(found) else found

    return Prepared(lambda: compiled(grads), lambda: variables, slots, traces)


def _count_traces():
    # Counts the functions inside functions too; TensorFlow's own counters
    # show only the outermost.
    from tensorflow.python.eager.polymorphic_function import (
        tracing_compilation,
    )

    original = tracing_compilation._create_concrete_function
    count = 0

    def counting(*args, **kwargs):
        nonlocal count
        count += 1
        return original(*args, **kwargs)

    tracing_compilation._create_concrete_function = counting
    return lambda: count


def ours(module: str) -> Callable[[Shapes, str, str], Prepared]:
    """Returns the preparation of our LAMB from one adapter's module."""

    def prepare(shapes, dtype, mode):
        lamb = importlib.import_module(module).LAMB
        return _tensorflow(
            lambda: lamb(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
            _keras_variable if module == "lamb_tf.keras" else _tf_variable,
            shapes,
            dtype,
            mode,
        )

    return prepare


def _keras_variable(array):
    import keras

    return keras.Variable(array, dtype=array.dtype.name)


def _tf_variable(array):
    import tensorflow as tf

    return tf.Variable(array)


def keras_lamb(shapes: Shapes, dtype: str, mode: str) -> Prepared:
    """Prepares `keras.optimizers.Lamb`, which decays outside the ratio."""
    import keras

    return _tensorflow(
        lambda: keras.optimizers.Lamb(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        _keras_variable,
        shapes,
        dtype,
        mode,
    )


def tf_models(shapes: Shapes, dtype: str, mode: str) -> Prepared:
    """Prepares the LAMB of tf-models-official."""
    from official.modeling.optimization import lamb

    return _tensorflow(
        lambda: lamb.LAMB(LEARNING_RATE, weight_decay_rate=WEIGHT_DECAY),
        _tf_variable,
        shapes,
        dtype,
        mode,
    )


def optax_lamb(shapes: Shapes, dtype: str, mode: str) -> Prepared:
    """Prepares `optax.lamb` in one jitted update, weights donated."""
    del mode
    import jax
    import optax

    optimizer = optax.lamb(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    weights = [jax.numpy.asarray(a) for a in arrays(shapes, dtype, 0.02)]
    grads = [jax.numpy.asarray(a) for a in arrays(shapes, dtype, 1.0)]
    held = {"weights": weights, "state": optimizer.init(weights)}
    del weights
    traces = 0

    def update(weights, state, grads):
        nonlocal traces
        traces += 1
        updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state

    # Donated, so that weights and moments are written in place.
    compiled = jax.jit(update, donate_argnums=(0, 1))

    def step():
        held["weights"], held["state"] = jax.block_until_ready(
            compiled(held["weights"], held["state"], grads)
        )

    return Prepared(
        step,
        lambda: held["weights"],
        lambda: jax.tree.leaves(held["state"]),
        lambda: traces,
    )


def timm_lamb(shapes: Shapes, dtype: str, mode: str) -> Prepared:
    """Prepares the LAMB of timm; PyTorch has none of its own."""
    import timm.optim
    import torch

    def tensors(scale):
        # NumPy's bfloat16 is not PyTorch's: round there.
        wide = arrays(shapes, "float32", scale)
        return [torch.from_numpy(a).to(getattr(torch, dtype)) for a in wide]

    weights = [torch.nn.Parameter(tensor) for tensor in tensors(0.02)]
    for weight, grad in zip(weights, tensors(1.0), strict=True):
        weight.grad = grad
    optimizer = timm.optim.Lamb(
        weights,
        lr=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        # Clipping is not part of the algorithm; nobody else does it here.
        max_grad_norm=None,
        foreach=True,
    )
    step = optimizer.step
    if mode == "compile":
        step = torch.compile(step)
    return Prepared(
        lambda: step(),
        lambda: [weight.detach().float() for weight in weights],
        lambda: [
            tensor
            for state in optimizer.state.values()
            for tensor in state.values()
        ],
    )


def nbytes(array: Any) -> int:
    """Returns the size of an array of any framework, in bytes."""
    # "float32", "<dtype: 'bfloat16'>", "torch.int64": each names its bits.
    return (
        math.prod(array.shape)
        * int(re.search(r"\d+", str(array.dtype))[0])
        // 8
    )
