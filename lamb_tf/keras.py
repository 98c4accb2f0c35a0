"""LAMB and LARS on Keras 3."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from lamb_tf import arguments
from lamb_tf.exclusions import path_of
from lamb_tf.lamb import Lamb
from lamb_tf.lars import Lars
from lamb_tf.update import compute_dtype, native

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "lamb_tf needs the TensorFlow backend of Keras. The backend in "
        f"force is {keras.backend.backend()!r}."
    )


class KerasAdapter(keras.optimizers.Optimizer):
    """Binds a layer-wise optimizer to the base class of Keras 3.

    Beyond the binding it corrects what the base class does otherwise:
    sparse gradients are made dense before anything reads them; gradients
    are clipped after the sum over replicas; slots and averages of
    low-precision variables are float32; a schedule and the averages
    count updates and not accumulated micro-steps; accumulation works in
    a graph under a strategy, with one sum over replicas an update; under
    a `LossScaleOptimizer`, an overflow on any replica skips the step.
    """

    _has_warned = False

    _schedule_class = keras.optimizers.schedules.LearningRateSchedule
    _base_checks = {
        "loss_scale_factor": arguments.optional(arguments.positive),
        "gradient_accumulation_steps": arguments.optional(
            arguments.count_from(2)
        ),
    }

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots of `variables`."""
        # Keras's reader of .h5 passes none, however many the model has.
        if self.built or not variables:
            return
        # Eagerly, also from within a step: there no variable would have its
        # device, nor a copy on each replica.
        with tf.init_scope():
            super().build(variables)
            names = self.rule.slots
            slots = self.add_optimizer_variables(variables, list(names))
            for name, values in zip(names, slots, strict=True):
                setattr(self, f"_{name}", values)
            self._plan(variables, list(zip(*slots, strict=True)))

    def add_variable_from_reference(
        self, reference_variable: Any, name=None, initializer="zeros"
    ) -> keras.Variable:
        """Creates a slot like a variable, in the compute dtype."""
        path = path_of(reference_variable).replace("/", "_")
        if name == "average":
            # Not zeros: there may be no update before it is used.
            def initializer(shape, dtype=None):
                return tf.cast(tf.convert_to_tensor(reference_variable), dtype)

        # Each replica sums up its own gradients; to read is to add them.
        own = name == "gradient_accumulator"
        with self._colocated(reference_variable):
            variable = keras.Variable(
                keras.initializers.get(initializer),
                shape=reference_variable.shape,
                dtype=compute_dtype(reference_variable.dtype).name,
                trainable=False,
                synchronization="on_read" if own else "auto",
                aggregation="sum" if own else "none",
                layout=getattr(reference_variable, "_layout", None),
                name=f"{path}_{name or 'var'}",
            )
        self._track_variable(variable)
        return variable

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras's `LossScaleOptimizer` takes the factor from the optimizer
        # that it wraps: the one sign by which that one can know.
        if name == "loss_scale_factor":
            again = hasattr(self, name)
            super().__setattr__("_is_wrapped", again and value is None)
        super().__setattr__(name, value)

    def apply(self, grads, trainable_variables=None) -> None:
        """Updates the variables; sparse gradients become dense first."""
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        variables = list(variables)
        grads = self._dense(list(zip(grads, variables, strict=True)))
        apply = super().apply
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        if not self._is_wrapped or replicas == 1:
            apply(grads, variables)
            return
        self._warn_of_the_scale()

        # In the cross-replica context: no replica could sum gradients in a
        # branch of its own.
        def apply_where_finite(strategy, finite, grads):
            tf.cond(
                strategy.experimental_local_results(finite)[0],
                lambda: _in_replicas(
                    strategy, lambda grads: apply(grads, variables), grads
                ),
                lambda: None,
            )

        finite = _on_all_replicas(_all_finite(grads))
        self._merge_call(apply_where_finite, finite, grads)

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable in place."""
        self._programs.value.move(
            variable, gradient, learning_rate, self.iterations
        )

    def _backend_apply_gradients(self, grads, trainable_variables):
        variables = [native(v) for v in trainable_variables]
        if self.gradient_accumulation_steps:
            for grad, variable in zip(grads, variables, strict=True):
                self._accumulator(variable).assign_add(grad)
            due = tf.equal(
                (self._iterations + 1) % self.gradient_accumulation_steps, 0
            )
            self._merge_call(
                lambda strategy: tf.cond(
                    due,
                    lambda: self._update_by_mean(strategy, variables),
                    lambda: None,
                )
            )
            return
        pairs = zip(grads, variables, strict=True)
        grads = [grad for grad, _ in self._all_reduce_sum_gradients(pairs)]
        self._merge_call(
            self._update_under, variables, self._clip_gradients(grads)
        )

    def _update_by_mean(self, strategy, variables):
        """Updates by the mean of the accumulated gradients.

        Args:
            strategy: The strategy in force.
            variables: Those that have a gradient in this micro-step. The
                others follow if they had one in an earlier micro-step.
        """
        others = [
            native(v)
            for v in self._trainable_variables
            if not self._overwrite_variable_with_gradient(v)
        ]
        others = [v for v in others if not any(v is w for w in variables)]

        def mean():
            sums = [
                self._accumulator(v).read_value() for v in variables + others
            ]
            replica = tf.distribute.get_replica_context()
            sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, sums)
            had_any = [
                tf.reduce_any(tf.not_equal(g, 0.0))
                for g in sums[len(variables) :]
            ]
            means = [g / self.gradient_accumulation_steps for g in sums]
            return self._clip_gradients(means), had_any

        means, had_any = _in_replicas(strategy, mean)
        self._move_under(strategy, variables, means[: len(variables)])
        late = zip(means[len(variables) :], others, had_any, strict=True)
        for grad, variable, has in late:
            tf.cond(
                strategy.experimental_local_results(has)[0],
                functools.partial(
                    self._move_under, strategy, [variable], [grad]
                ),
                lambda: None,
            )
        for variable in variables + others:
            strategy.extended.update(
                self._accumulator(variable),
                lambda a: a.assign(tf.zeros_like(a), read_value=False),
                group=False,
            )
        if self.use_ema:
            self._average_all_under(strategy)

    def _update_under(self, strategy, variables, grads):
        self._move_under(strategy, variables, grads)
        if self.use_ema:
            self._average_all_under(strategy)

    def _average_all_under(self, strategy):
        # Keras's rule: the first update sets the average to the weights.
        momentum = tf.where(self.iterations > 0, self.ema_momentum, 0.0)
        self._average_under(strategy, self._trainable_variables, momentum)

    def _merge_call(self, function: Callable, *arguments: Any) -> None:
        tf.__internal__.distribute.interim.maybe_merge_call(
            function, self._distribution_strategy, *arguments
        )

    def _warn_of_the_scale(self):
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "Keras's `LossScaleOptimizer` sees the gradients of the first "
                "replica alone. An overflow on another one skips the step, "
                "but does not lower the loss scale. Wrap the optimizer in "
                "`lamb_tf.keras.LossScaleOptimizer`, which asks all replicas.",
                stacklevel=3,
            )

    def _accumulator(self, variable):
        return native(self._accumulated_gradients[self._index(variable)])

    def _get_current_learning_rate(self):
        rate = self._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return rate(self.iterations)
        return super()._get_current_learning_rate()

    def _index(self, variable):
        return self._get_variable_index(variable)

    def _new_trust(self, variable):
        # A report and not a state: kept out of `variables`.
        with self._colocated(variable):
            return keras.Variable(
                self._NO_TRUST, dtype="float32", trainable=False, name="trust"
            )

    def _colocated(self, variable):
        return self._distribution_strategy.extended.colocate_vars_with(
            native(variable)
        )


@keras.saving.register_keras_serializable(package="lamb_tf", name="LAMB")
class LAMB(Lamb, KerasAdapter):
    """Algorithm 2 of arXiv:1904.00962; see `lamb_tf.lamb.Lamb`."""


@keras.saving.register_keras_serializable(package="lamb_tf", name="LARS")
class LARS(Lars, KerasAdapter):
    """LARS in two variants; see `lamb_tf.lars.Lars`."""


@keras.saving.register_keras_serializable("lamb_tf", "LossScaleOptimizer")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's dynamic loss scale, agreed upon by all replicas.

    Keras asks the first replica alone whether its gradients are finite.
    Here an overflow on any replica skips the step and lowers the scale.
    """

    def __init__(self, inner_optimizer: Any, *args: Any, **kwargs: Any):
        super().__init__(inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, KerasAdapter):
            inner_optimizer._is_wrapped = False  # It need not ask again.

    def check_finite(self, grads: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns whether the gradients of every replica are finite."""
        return _on_all_replicas(_all_finite(grads))


def _all_finite(grads):
    """Returns whether all gradients of this replica are finite."""
    grads = [
        grad.values if isinstance(grad, tf.IndexedSlices) else grad
        for grad in grads
        if grad is not None
    ]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in grads])


def _on_all_replicas(condition):
    """Returns whether a condition holds on every replica."""
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return condition
    exceptions = replica.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.cast(tf.logical_not(condition), tf.int32)
    )
    return tf.equal(exceptions, 0)


def _in_replicas(strategy, function, *arguments):
    """Calls a function in the replica context, back from a merge call."""
    if tf.distribute.in_cross_replica_context():
        return strategy.extended.call_for_each_replica(function, arguments)
    return function(*arguments)
