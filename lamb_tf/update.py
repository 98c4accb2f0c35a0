"""The update of one variable in place, compiled once per kind.

The same Python runs in three ways: as its own XLA program in eager mode
and inside an ordinary `tf.function`; inlined in an enclosing XLA
program, such as a TPU step; and as a plain function where a device has
no XLA.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from lamb_tf.layerwise import Layer
from lamb_tf.rules import Lamb

LOW_PRECISION = (tf.bfloat16, tf.float16)


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype of the arithmetic and slots of a variable.

    float32 for bfloat16, float16 and float32; float64 for float64.
    """
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype in LOW_PRECISION else dtype


def dense(gradient: tf.Tensor | tf.IndexedSlices, variable) -> tf.Tensor:
    """Returns a gradient as a dense tensor in the compute dtype.

    Rows with the same index are summed: clipping, moments and norms see
    the whole gradient and not its pieces. Low precision is left behind
    here, before any square can overflow.

    Args:
        gradient: Gradient of `variable`, dense or sparse.
        variable: The variable it belongs to.

    Returns:
        A tensor of the shape of `variable`.
    """
    dtype = compute_dtype(variable.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(
            tf.cast(gradient.values, dtype),
            gradient.indices,
            tf.shape(variable)[0]
            if variable.shape[0] is None
            else variable.shape[0],
        )
    return tf.cast(gradient, dtype)


def update(
    rule: Lamb,
    layer: Layer,
    variable: tf.Variable,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    iterations: tf.Tensor,
    ratio: tf.Variable,
    master: tf.Variable | None,
    *slots: tf.Variable,
) -> None:
    """Moves one variable by one step, and its slots with it.

    Args:
        rule: The base update, such as `rules.Lamb`.
        layer: What the strategy does with this variable.
        variable: The weights; any shape, floating-point.
        gradient: Dense gradient in the compute dtype.
        learning_rate: Scalar.
        iterations: Integer scalar, the updates done before this one.
        ratio: float32 scalar variable that takes the trust ratio.
        master: float32 copy of low-precision weights, else `None`.
        *slots: Variables of `rule.slots`, in that order, in the compute
            dtype.
    """
    dtype = gradient.dtype
    w = tf.cast(variable.read_value(), dtype)
    if master is not None:
        w = _refined(variable.read_value(), master.read_value())
    t = tf.cast(iterations + 1, dtype)
    moments = [slot.read_value() for slot in slots]
    r, moments = rule(gradient, *moments, t)
    w, new_ratio = layer(w, r, tf.cast(learning_rate, dtype))
    for slot, value in zip(slots, moments, strict=True):
        slot.assign(value, read_value=False)
    if master is not None:
        master.assign(w, read_value=False)
    variable.assign(tf.cast(w, variable.dtype), read_value=False)
    ratio.assign(tf.cast(new_ratio, ratio.dtype), read_value=False)


def program(rule: Lamb, layer: Layer, jit_compile: bool) -> Callable:
    """Returns `update` with its flags bound, as one `tf.function`.

    Variables are arguments, so that every variable of a shape and dtype
    shares one trace. The trace may refer to variables of its first call:
    it belongs to the optimizer that owns them, and to no wider cache.
    """
    return tf.function(
        functools.partial(update, rule, layer),
        jit_compile=(jit_compile and has_xla()) or None,
        autograph=False,
    )


@functools.cache
def has_xla() -> bool:
    """Returns whether this build of TensorFlow can compile with XLA."""
    with tf.init_scope():
        try:
            tf.function(lambda: tf.constant(1.0), jit_compile=True)()
        except (tf.errors.OpError, ValueError, RuntimeError):
            return False
    return True


def _refined(value, master):
    """Returns the master copy, or `value` where it was set elsewhere.

    Weights may be loaded, constrained or averaged behind the optimizer's
    back; wherever the master no longer rounds to them, they win. So a
    master may also start as zeros. The bits are compared: XLA may widen
    a comparison of low-precision numbers, and then nothing is equal.
    """
    bits = tf.bitcast(value, tf.uint16)
    rounded = tf.bitcast(tf.cast(master, value.dtype), tf.uint16)
    return tf.where(bits == rounded, master, tf.cast(value, master.dtype))
