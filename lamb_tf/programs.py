"""The compiled updates: one program per kind of variable.

The same Python runs in three ways: as XLA programs of its own in eager
mode and inside an ordinary `tf.function`; inlined in an enclosing XLA
program, such as a TPU step; and as a plain function where a device has
no XLA.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lamb_tf.exclusions import whole_of
from lamb_tf.layerwise import Layer
from lamb_tf.rules import Lamb, Lars
from lamb_tf.update import (
    Entry,
    Joined,
    Referred,
    Stacked,
    compute_dtype,
    dense,
    native,
    update,
)

_TPU_STRATEGIES = (
    tf.distribute.TPUStrategy,
    tf.distribute.experimental.TPUStrategy,
)
# Variables up to this size are stacked with their like.
STACKED_ELEMENTS = 2**14
# Choices of variables with a gradient that have a function in eager mode.
CHOICES = 16


class Programs:
    """The compiled updates of one optimizer.

    Optimizers with the same arguments share them: TensorFlow never frees
    what XLA has compiled.
    """

    def __init__(
        self,
        rule: Lamb | Lars,
        entries: Sequence[Entry],
        index: Callable[[Any], int],
        jit_compile: bool,
    ):
        """Creates the programs; each is traced at its first call.

        Args:
            rule: The algorithm, of `rules.py`.
            entries: One for each variable, in the order of the build.
            index: Returns a variable's place in that order.
            jit_compile: Whether a program is compiled by XLA.
        """
        self._rule = rule
        self._entries = entries
        self._index = index
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

    def move_under(
        self,
        strategy: tf.distribute.Strategy,
        variables: Sequence[Any],
        gradients: Sequence[Any],
        learning_rate: Any,
        iterations: Any,
    ) -> None:
        """Updates variables, each on every device that has a copy.

        To be called in the context that `maybe_merge_call` gives.

        Args:
            strategy: The strategy in force.
            variables: The weights.
            gradients: Their gradients, dense, summed over the replicas.
            learning_rate: Scalar.
            iterations: Integer scalar, the updates done before this one.
        """
        pairs, sharded = [], {}
        for variable, gradient in zip(variables, gradients, strict=True):
            whole = whole_of(variable)
            if whole is variable:
                pairs.append((variable, gradient))
            else:
                gradients_of = sharded.setdefault(id(whole), (whole, {}))[1]
                gradients_of[self._index(variable)] = gradient
        for whole, gradients_of in sharded.values():
            self._move_parts(whole, gradients_of, learning_rate, iterations)
        if tf.distribute.has_strategy():
            self._move_copies(strategy, pairs, learning_rate, iterations)
            return
        alone = [pair for pair in pairs if _strategy_of(pair[0]) is None]
        if alone:
            self._move_all(*zip(*alone, strict=True), learning_rate, iterations)
        for pair in pairs:
            # Outside its scope, a variable still has a copy on each device.
            own = _strategy_of(pair[0])
            if own is not None:
                with own.scope():
                    self._move_copies(own, [pair], learning_rate, iterations)

    def _move_copies(self, strategy, pairs, learning_rate, iterations):
        for variable, gradient in pairs:
            strategy.extended.update(
                variable,
                self.move,
                args=(gradient, learning_rate, iterations),
                group=False,
            )

    def move(
        self, variable: Any, gradient: Any, learning_rate: Any, iterations: Any
    ) -> None:
        """Updates one component of one variable, on its device."""
        self._move(
            [self._entries[self._index(variable)]],
            [variable],
            [dense(gradient, variable)],
            tf.convert_to_tensor(learning_rate),
            tf.convert_to_tensor(iterations),
        )

    def _move(
        self,
        entries: Sequence[Entry],
        variables: Sequence[Any],
        gradients: Sequence[tf.Tensor],
        learning_rate: tf.Tensor,
        iterations: tf.Tensor,
        after: tf.Tensor | None = None,
    ) -> tf.Tensor | None:
        """Moves one variable, or some that are alike, on their device."""
        layer, variable = entries[0].layer, variables[0]
        trusts = [entry.trust for entry in entries]
        masters = [entry.master for entry in entries]
        slots = list(zip(*(entry.slots for entry in entries), strict=True))
        if isinstance(tf.distribute.get_strategy(), _TPU_STRATEGIES):
            # All is one program already, and every core traces it at once:
            # only a variable as a whole is to each core its own copy.
            update(
                self._rule,
                layer,
                native(variable),
                gradients[0],
                learning_rate,
                iterations,
                native(trusts[0]),
                after,
                native(masters[0]),
                *(native(slot) for (slot,) in slots),
            )
            return None

        def handles(each):
            return [_local(v, variable.device).handle for v in each]

        if len(entries) > 1:
            layer = dataclasses.replace(layer, stacked=True)
        kind = Kind(
            rule=self._rule,
            layer=layer,
            shape=tuple(variable.shape),
            dtype=variable.dtype,
            gradient_dtype=gradients[0].dtype,
            count=len(entries),
            is_chained=after is not None,
            jit_compile=self._jit_compile and has_xla(),
        )
        program = self._by_kind[kind] = _program(kind)
        return program(
            handles(variables),
            list(gradients),
            learning_rate,
            iterations,
            handles(trusts),
            after,
            None if masters[0] is None else handles(masters),
            *map(handles, slots),
        )

    def _move_parts(self, whole, gradients, learning_rate, iterations):
        """Updates a sharded variable: its parts together are one layer.

        No program of its own: XLA takes no variables of several devices.

        Args:
            whole: A `ShardedVariable`.
            gradients: Those of its parts, by the part's index.
            learning_rate: Scalar.
            iterations: Integer scalar.
        """
        parts = [(self._index(part), part) for part in whole.variables]
        entries = [self._entries[index] for index, _ in parts]
        masters = [entry.master for entry in entries]
        slots = zip(*(entry.slots for entry in entries), strict=True)
        gradient = tf.concat(
            [
                # To the whole, a part without a gradient has one of zeros.
                tf.cast(gradients[index], compute_dtype(part.dtype))
                if index in gradients
                else tf.zeros(part.shape, compute_dtype(part.dtype))
                for index, part in parts
            ],
            axis=0,
        )
        first = entries[0]
        update(
            self._rule,
            first.layer,
            Joined([part for _, part in parts]),
            gradient,
            tf.convert_to_tensor(learning_rate),
            tf.convert_to_tensor(iterations),
            native(first.trust),
            None,
            None if first.master is None else Joined(masters),
            *map(Joined, slots),
        )

    def _move_all(self, variables, gradients, learning_rate, iterations):
        """Updates variables outside a strategy, by one call to TensorFlow.

        In eager mode a call per variable would cost more than a small
        variable's update.
        """
        entries = [self._entries[self._index(v)] for v in variables]
        learning_rate = tf.convert_to_tensor(learning_rate)
        iterations = tf.convert_to_tensor(iterations)
        if not tf.executing_eagerly():
            self._move_stacks(
                entries, variables, gradients, learning_rate, iterations
            )
            return
        key = tuple(map(id, entries))
        program = self._by_variables.get(key)
        if program is None:
            program = functools.partial(self._move_stacks, entries, variables)
            # Where any of many variables may lack a gradient, a trace for
            # each choice would cost more than the calls, and stay.
            if len(self._by_variables) < CHOICES:
                program = tf.function(program, autograph=False)
                self._by_variables[key] = program
        program(list(gradients), learning_rate, iterations)

    def _move_stacks(
        self, entries, variables, gradients, learning_rate, iterations
    ):
        stacks, occurrences = {}, collections.Counter()
        for place, each in enumerate(
            zip(entries, variables, gradients, strict=True)
        ):
            # A variable that comes again moves again, after the others.
            occurrences[id(each[0])] += 1
            alike = _alike(*each)
            key = place if alike is None else (alike, occurrences[id(each[0])])
            stacks.setdefault(key, []).append(each)
        after = tf.zeros([], iterations.dtype)
        for stack in stacks.values():
            entries, variables, gradients = zip(*stack, strict=True)
            # A program runs where it is called, not where its variables are.
            with tf.device(variables[0].device):
                token = self._move(
                    entries,
                    variables,
                    gradients,
                    learning_rate,
                    iterations,
                    after,
                )
            # One after the other: each uses all cores, and each has a
            # temporary of its variables' size.
            if entries[0].layer.by_rows:
                after = token


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a program is compiled for.

    Attributes:
        rule: The algorithm.
        layer: What the strategy does.
        shape: Of each variable.
        dtype: Of each variable.
        gradient_dtype: Of each gradient.
        count: Variables in a call; more than one are stacked.
        is_chained: Whether a call follows another.
        jit_compile: Whether XLA compiles it.
    """

    rule: Lamb | Lars
    layer: Layer
    shape: tuple[int, ...]
    dtype: tf.DType
    gradient_dtype: tf.DType
    count: int
    is_chained: bool
    jit_compile: bool


@functools.cache
def _program(kind: Kind) -> Callable:
    """Returns `update` of one kind, as one `tf.function`.

    It takes the handles of variables and not the variables, to which a
    trace would refer for ever.
    """
    slot_dtype = compute_dtype(kind.dtype)

    def refer(handles, dtype, shape=kind.shape):
        if handles is None:
            return None
        each = [Referred(handle, dtype, shape) for handle in handles]
        return Stacked(each) if kind.count > 1 else each[0]

    def program(
        variables,
        gradients,
        learning_rate,
        iterations,
        trusts,
        after,
        masters,
        *slots,
    ):
        return update(
            kind.rule,
            kind.layer,
            refer(variables, kind.dtype),
            tf.stack(gradients) if kind.count > 1 else gradients[0],
            learning_rate,
            iterations,
            refer(trusts, tf.float32, [3]),
            after,
            refer(masters, slot_dtype),
            *(refer(each, slot_dtype) for each in slots),
        )

    # A partial, whose traces TensorFlow counts by itself: it would warn of
    # retracing if it took all programs for one.
    return tf.function(
        functools.partial(program),
        jit_compile=kind.jit_compile or None,
        autograph=False,
    )


def _alike(entry, variable, gradient):
    """Returns what the variables of a stack share; `None` for no stack.

    The work of a small variable is the calls that do it. On TPU, where
    all is one program, there is no call, and copies would be the work.
    """
    if not entry.layer.by_rows or math.prod(entry.shape) > STACKED_ELEMENTS:
        return None
    dtypes = str(variable.dtype), gradient.dtype
    return entry.layer, entry.shape, dtypes, variable.device


@functools.cache
def has_xla() -> bool:
    """Returns whether this build of TensorFlow can compile with XLA."""
    with tf.init_scope():
        try:
            tf.function(lambda: tf.constant(1.0), jit_compile=True)()
        except (tf.errors.OpError, ValueError, RuntimeError):
            return False
    return True


def _strategy_of(variable):
    """Returns the strategy that has spread a variable, or `None`."""
    variable = native(variable)
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable.distribute_strategy
    return None


def _local(variable, device):
    """Returns the component of a variable that lives on `device`."""
    components = tf.distribute.get_strategy().experimental_local_results(
        native(variable)
    )
    for component in components:
        if component.device == device:
            return component
    return components[0]
