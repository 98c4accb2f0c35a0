"""The update of one variable in place, with its slots.

What compiles it, and calls it for which variables, stands in
`programs.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lamb_tf.exclusions import path_of
from lamb_tf.layerwise import Layer
from lamb_tf.rules import Lamb, Lars

LOW_PRECISION = (tf.bfloat16, tf.float16)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable's place in an optimizer.

    Attributes:
        path: The variable's path.
        shape: Its shape.
        layer: What the strategy does with it.
        slots: Variables of `rule.slots`, in that order, in the compute
            dtype.
        master: float32 copy of low-precision weights, else `None`.
        trust: float32 variable of shape `[3]` that takes the `Trust`.
    """

    path: str
    shape: tuple[int, ...]
    layer: Layer
    slots: tuple[Any, ...]
    master: Any | None
    trust: Any


def compute_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype of the arithmetic and slots of a variable.

    float32 for bfloat16, float16 and float32; float64 for float64.
    """
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype in LOW_PRECISION else dtype


def dense(gradient: tf.Tensor | tf.IndexedSlices, variable) -> tf.Tensor:
    """Returns a gradient as a dense tensor.

    Rows with the same index are summed, in the compute dtype: clipping,
    moments and norms see the whole gradient and not its pieces.

    Args:
        gradient: Gradient of `variable`, dense or sparse.
        variable: The variable it belongs to.

    Returns:
        A tensor of the shape of `variable`.

    Raises:
        ValueError: If a dense gradient has another shape.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        gradient = tf.convert_to_tensor(gradient)
        if gradient.shape != variable.shape:
            if not gradient.shape.is_compatible_with(variable.shape):
                raise ValueError(
                    f"The gradient of {path_of(variable)} has shape "
                    f"{gradient.shape}, the variable {variable.shape}."
                )
            gradient = tf.ensure_shape(gradient, variable.shape)
        return gradient
    rows = variable.shape[0]
    return tf.math.unsorted_segment_sum(
        tf.cast(gradient.values, compute_dtype(variable.dtype)),
        gradient.indices,
        tf.shape(variable)[0] if rows is None else rows,
    )


def update(
    rule: Lamb | Lars,
    layer: Layer,
    variable: tf.Variable,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    iterations: tf.Tensor,
    trust: tf.Variable,
    after: tf.Tensor | None,
    master: tf.Variable | None,
    *slots: tf.Variable,
) -> tf.Tensor:
    """Moves one variable by one step, and its slots with it.

    Args:
        rule: The algorithm, of `rules.py`.
        layer: What the strategy does with this variable.
        variable: The weights; any shape, floating-point.
        gradient: Dense gradient, floating-point.
        learning_rate: Scalar.
        iterations: Integer scalar, the updates done before this one.
        trust: As in `Entry`.
        after: What the update to wait for returned; `None` for no other.
        master: As in `Entry`.
        *slots: As in `Entry`.

    Returns:
        0, an integer scalar that is known when the weights are.
    """
    dtype = compute_dtype(variable.dtype)
    w = tf.cast(variable.read_value(), dtype)
    if master is not None:
        w = refined(variable.read_value(), master.read_value())
    w, moments, new_trust = rule(
        layer,
        w,
        tf.cast(gradient, dtype),
        tuple(slot.read_value() for slot in slots),
        tf.cast(iterations + (1 if after is None else 1 + after), dtype),
        tf.cast(learning_rate, dtype),
    )
    for slot, value in zip(slots, moments, strict=True):
        slot.assign(value, read_value=False)
    if master is not None:
        master.assign(w, read_value=False)
    variable.assign(tf.cast(w, variable.dtype), read_value=False)
    new_trust = tf.cast(layer.packed(new_trust), trust.dtype)
    trust.assign(new_trust, read_value=False)
    return _zero_of(w, iterations.dtype)


class Referred:
    """Reads and writes a variable by its handle."""

    def __init__(
        self, handle: tf.Tensor, dtype: tf.DType, shape: Sequence[int]
    ):
        self._handle = handle
        self._shape = shape
        self.dtype = dtype

    def read_value(self) -> tf.Tensor:
        """Returns the value."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self._handle, dtype=self.dtype
        )
        return tf.ensure_shape(value, self._shape)

    def assign(self, value: tf.Tensor, read_value: bool) -> None:
        """Sets the value; `read_value` is as for `tf.Variable`."""
        del read_value
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)


class Stacked:
    """Reads and writes variables of one shape and dtype as one."""

    def __init__(self, variables: Sequence[Any]):
        self._variables = variables
        self.dtype = variables[0].dtype

    def read_value(self) -> tf.Tensor:
        """Returns the values, stacked along a new axis 0."""
        return tf.stack([v.read_value() for v in self._variables])

    def assign(self, value: tf.Tensor, read_value: bool) -> None:
        """Sets each variable to its part of `value`."""
        values = tf.unstack(value, len(self._variables))
        for variable, each in zip(self._variables, values, strict=True):
            variable.assign(each, read_value=read_value)


class Joined:
    """Reads and writes the parts of a sharded variable as one."""

    def __init__(self, parts: Sequence[Any]):
        self._parts = [native(part) for part in parts]
        self.dtype = self._parts[0].dtype

    def read_value(self) -> tf.Tensor:
        """Returns the parts, concatenated along axis 0."""
        return tf.concat([part.read_value() for part in self._parts], axis=0)

    def assign(self, value: tf.Tensor, read_value: bool) -> None:
        """Sets each part to its rows of `value`."""
        rows = [part.shape[0] for part in self._parts]
        pieces = tf.split(value, rows)
        for part, piece in zip(self._parts, pieces, strict=True):
            part.assign(piece, read_value=read_value)


def native(variable: Any) -> Any:
    """Returns the TensorFlow variable behind one of either Keras."""
    value = getattr(variable, "value", None)
    # A variable of Keras 3 holds one; that of TensorFlow has a method.
    return value if isinstance(value, tf.Variable) else variable


def true_dtype(variable: Any) -> tf.DType:
    """Returns the dtype that a variable of either Keras is stored in.

    Under a mixed policy one of tf_keras reports that it is cast to.
    """
    return tf.as_dtype(getattr(variable, "true_dtype", variable.dtype))


def _zero_of(w, dtype):
    """Returns 0 in a way that no compiler knows before it knows `w`."""
    if not w.shape.num_elements():
        return tf.zeros([], dtype)
    first = tf.reshape(w, [-1])[0]
    return tf.cast(tf.math.is_nan(first) & tf.math.is_finite(first), dtype)


def refined(value, master):
    """Returns the master copy, or `value` where it was set elsewhere.

    Weights may be loaded, constrained or averaged behind the optimizer's
    back; wherever the master no longer rounds to them, they win. So a
    master may also start as zeros. The bits are compared: XLA may widen
    a comparison of low-precision numbers, and then nothing is equal.
    """
    bits = tf.bitcast(value, tf.uint16)
    rounded = tf.bitcast(tf.cast(master, value.dtype), tf.uint16)
    return tf.where(bits == rounded, master, tf.cast(value, master.dtype))
