"""The update in place, compiled once per kind of variable.

The same Python runs in three ways: as XLA programs of its own in eager
mode and inside an ordinary `tf.function`; inlined in an enclosing XLA
program, such as a TPU step; and as a plain function where a device has
no XLA.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lamb_tf.layerwise import Layer
from lamb_tf.rules import Lamb, Lars

LOW_PRECISION = (tf.bfloat16, tf.float16)
_TPU_STRATEGIES = (
    tf.distribute.TPUStrategy,
    tf.distribute.experimental.TPUStrategy,
)
# Variables up to this size are stacked with their like.
STACKED_ELEMENTS = 2**14
# Choices of variables with a gradient that have a function in eager mode.
CHOICES = 16


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
        gradient: Dense gradient in the compute dtype.
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


def update_stacked(
    rule: Lamb | Lars,
    layer: Layer,
    variables: Sequence[tf.Variable],
    gradients: Sequence[tf.Tensor],
    learning_rate: tf.Tensor,
    iterations: tf.Tensor,
    trusts: Sequence[tf.Variable],
    after: tf.Tensor | None,
    masters: Sequence[tf.Variable] | None,
    *slots: Sequence[tf.Variable],
) -> tf.Tensor:
    """Moves variables of one shape and dtype, as `update` moves one."""
    return update(
        rule,
        layer,
        _Stacked(variables),
        tf.stack(gradients),
        learning_rate,
        iterations,
        _Stacked(trusts),
        after,
        None if masters is None else _Stacked(masters),
        *map(_Stacked, slots),
    )


class Programs:
    """The compiled updates of one optimizer.

    A program belongs to the optimizer whose variables it moves, and to
    no wider cache: its trace may refer to those of its first call.
    """

    def __init__(self, rule: Lamb | Lars, jit_compile: bool):
        self._rule = rule
        self._jit_compile = jit_compile
        self._by_kind = {}
        self._by_variables = {}

    @property
    def trace_count(self) -> int:
        """How often a kind of variable was traced, in all."""
        return sum(
            program.experimental_get_tracing_count()
            for program in self._by_kind.values()
        )

    def move(
        self,
        entry: Entry,
        variable: Any,
        gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        iterations: tf.Tensor,
        after: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Moves one variable on its device, as `update` does.

        Variables are arguments of the program, so that all of a kind
        share one trace.
        """
        if isinstance(tf.distribute.get_strategy(), _TPU_STRATEGIES):
            # All is one program already, and every core traces it at once:
            # only a variable as a whole is to each core its own copy.
            update(
                self._rule,
                entry.layer,
                native(variable),
                gradient,
                learning_rate,
                iterations,
                native(entry.trust),
                native(entry.master),
                *map(native, entry.slots),
            )
            return
        device = variable.device
        return self._program(update, entry.layer, variable, 1)(
            _local(variable, device),
            gradient,
            learning_rate,
            iterations,
            _local(entry.trust, device),
            after,
            None if entry.master is None else _local(entry.master, device),
            *(_local(slot, device) for slot in entry.slots),
        )

    def _program(self, function, layer, variable, count):
        # A function for each shape: one for all would trace as often, and
        # TensorFlow would warn of it.
        kind = layer, tuple(variable.shape), str(variable.dtype), count
        if kind not in self._by_kind:
            self._by_kind[kind] = tf.function(
                functools.partial(function, self._rule, layer),
                jit_compile=(self._jit_compile and has_xla()) or None,
                autograph=False,
            )
        return self._by_kind[kind]

    def move_parts(
        self,
        entries: Sequence[Entry],
        parts: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        iterations: tf.Tensor,
    ) -> None:
        """Moves the parts of a sharded variable as one layer.

        No program of its own: XLA takes no variables of several devices.
        """
        first = entries[0]
        masters = [entry.master for entry in entries]
        slots = zip(*(entry.slots for entry in entries), strict=True)
        update(
            self._rule,
            first.layer,
            _Joined(parts),
            tf.concat(gradients, axis=0),
            learning_rate,
            iterations,
            native(first.trust),
            None,
            None if first.master is None else _Joined(masters),
            *map(_Joined, slots),
        )

    def move_all(
        self,
        entries: Sequence[Entry],
        variables: Sequence[Any],
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        iterations: tf.Tensor,
    ) -> None:
        """Moves variables outside a strategy, by one call to TensorFlow.

        In eager mode a call per variable would cost more than a small
        variable's update.
        """
        if not tf.executing_eagerly():
            self._move_kinds(
                entries, variables, gradients, learning_rate, iterations
            )
            return
        key = tuple(map(id, entries))
        program = self._by_variables.get(key)
        if program is None:
            program = functools.partial(self._move_kinds, entries, variables)
            # Where any of many variables may lack a gradient, a trace for
            # each choice would cost more than the calls, and stay.
            if len(self._by_variables) < CHOICES:
                program = tf.function(program, autograph=False)
                self._by_variables[key] = program
        program(list(gradients), learning_rate, iterations)

    def _move_kinds(
        self, entries, variables, gradients, learning_rate, iterations
    ):
        kinds = {}
        for each in zip(entries, variables, gradients, strict=True):
            kinds.setdefault(_stack_of(each[0], each[1]), []).append(each)
        after = tf.zeros([], iterations.dtype)
        # A program runs where it is called, not where its variables are.
        for kind, members in kinds.items():
            if kind is None or len(members) == 1:
                for entry, variable, gradient in members:
                    with tf.device(variable.device):
                        token = self.move(
                            entry,
                            variable,
                            gradient,
                            learning_rate,
                            iterations,
                            after,
                        )
                    # One after the other: each uses all cores, and each
                    # has a temporary of its variable's size.
                    after = token if entry.layer.by_rows else after
            else:
                with tf.device(members[0][1].device):
                    after = self._move_stacked(
                        members, learning_rate, iterations, after
                    )

    def _move_stacked(self, members, learning_rate, iterations, after):
        entries, variables, gradients = zip(*members, strict=True)
        masters = [native(entry.master) for entry in entries]
        slots = zip(*(entry.slots for entry in entries), strict=True)
        layer = dataclasses.replace(entries[0].layer, stacked=True)
        program = self._program(
            update_stacked, layer, variables[0], len(members)
        )
        return program(
            [native(v) for v in variables],
            list(gradients),
            learning_rate,
            iterations,
            [native(entry.trust) for entry in entries],
            after,
            None if masters[0] is None else masters,
            *([native(slot) for slot in each] for each in slots),
        )


def _stack_of(entry, variable):
    """Returns what variables of one stack share; `None` for no stack.

    The work of a small variable is the calls that do it. On TPU, where
    all is one program, there is no call, and copies would be the work.
    """
    if not entry.layer.by_rows or math.prod(entry.shape) > STACKED_ELEMENTS:
        return None
    return entry.layer, entry.shape, str(variable.dtype), variable.device


class _Stacked:
    """Reads and writes variables of one shape and dtype as one."""

    def __init__(self, variables: Sequence[tf.Variable]):
        self._variables = variables
        self.dtype = variables[0].dtype

    def read_value(self):
        return tf.stack([v.read_value() for v in self._variables])

    def assign(self, value, read_value):
        values = tf.unstack(value, len(self._variables))
        for variable, each in zip(self._variables, values, strict=True):
            variable.assign(each, read_value=read_value)


class _Joined:
    """Reads and writes the parts of a sharded variable as one."""

    def __init__(self, parts: Sequence[Any]):
        self._parts = [native(part) for part in parts]
        self.dtype = self._parts[0].dtype

    def read_value(self):
        return tf.concat([part.read_value() for part in self._parts], axis=0)

    def assign(self, value, read_value):
        rows = [part.shape[0] for part in self._parts]
        pieces = tf.split(value, rows)
        for part, piece in zip(self._parts, pieces, strict=True):
            part.assign(piece, read_value=read_value)


def native(variable: Any) -> Any:
    """Returns the TensorFlow variable behind one of either Keras."""
    value = getattr(variable, "value", None)
    # A variable of Keras 3 holds one; that of TensorFlow has a method.
    return value if isinstance(value, tf.Variable) else variable


def _zero_of(w, dtype):
    """Returns 0 in a way that no compiler knows before it knows `w`."""
    if not w.shape.num_elements():
        return tf.zeros([], dtype)
    first = tf.reshape(w, [-1])[0]
    return tf.cast(tf.math.is_nan(first) & tf.math.is_finite(first), dtype)


@functools.cache
def has_xla() -> bool:
    """Returns whether this build of TensorFlow can compile with XLA."""
    with tf.init_scope():
        try:
            tf.function(lambda: tf.constant(1.0), jit_compile=True)()
        except (tf.errors.OpError, ValueError, RuntimeError):
            return False
    return True


def _local(variable, device):
    """Returns the component of a variable that lives on `device`."""
    components = tf.distribute.get_strategy().experimental_local_results(
        native(variable)
    )
    for component in components:
        if component.device == device:
            return component
    return components[0]


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
