"""LAMB and LARS on Keras 3."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from lamb_tf.exclusions import path_of
from lamb_tf.lamb import Lamb
from lamb_tf.lars import Lars
from lamb_tf.update import LOW_PRECISION, compute_dtype, dense, native

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
    a graph under a strategy, with one sum over replicas an update.
    """

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots of `variables`."""
        if self.built:
            return
        super().build(variables)
        names = self.rule.slots
        slots = self.add_optimizer_variables(variables, list(names))
        for name, values in zip(names, slots, strict=True):
            setattr(self, f"_{name}", values)
        masters = [
            self.add_variable_from_reference(v, "master")
            if v.dtype in LOW_PRECISION
            else None
            for v in variables
        ]
        self._masters = [m for m in masters if m is not None]
        trusts = [self._new_trust(v) for v in variables]
        self._plan(variables, list(zip(*slots, strict=True)), masters, trusts)

    def add_variable_from_reference(
        self, reference_variable: Any, name=None, initializer="zeros"
    ) -> keras.Variable:
        """Creates a slot like a variable, in the compute dtype."""
        path = path_of(reference_variable).replace("/", "_")
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

    def apply(self, grads, trainable_variables=None) -> None:
        """Updates the variables; sparse gradients become dense first."""
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        variables = list(variables)
        grads = [
            None if grad is None else dense(grad, variable)
            for grad, variable in zip(grads, variables, strict=True)
        ]
        super().apply(grads, variables)

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable in place."""
        self._move(variable, gradient, learning_rate, self.iterations)

    def _backend_apply_gradients(self, grads, trainable_variables):
        variables = [native(v) for v in trainable_variables]
        if self.gradient_accumulation_steps:
            for grad, variable in zip(grads, variables, strict=True):
                self._accumulator(variable).assign_add(grad)
            self._merge_call(self._update_when_due, variables)
            return
        pairs = zip(grads, variables, strict=True)
        grads = [grad for grad, _ in self._all_reduce_sum_gradients(pairs)]
        self._merge_call(
            self._update_under, self._clip_gradients(grads), variables
        )

    def _update_when_due(self, strategy, variables):
        steps = self.gradient_accumulation_steps

        def update():
            # What a variable without a gradient in this micro-step has
            # accumulated stays there for its next update.
            grads = [
                self._sum_over_replicas(self._accumulator(v)) / steps
                for v in variables
            ]
            grads = self._clip_gradients(grads)
            self._update_under(strategy, grads, variables)
            for variable in variables:
                accumulator = self._accumulator(variable)
                accumulator.assign(tf.zeros_like(accumulator))

        due = tf.equal((self._iterations + 1) % steps, 0)
        tf.cond(due, update, lambda: None)

    def _update_under(self, strategy, grads, variables):
        self._move_under(
            strategy, variables, grads, self.learning_rate, self.iterations
        )
        if self.use_ema:
            self._average_under(strategy)

    def _average_under(self, strategy):
        averages = self._model_variables_moving_average
        # Keras's rule: the first update sets the average to the weights.
        momentum = tf.where(self.iterations > 0, self.ema_momentum, 0.0)
        self._update_averages(
            strategy, self._trainable_variables, averages, momentum
        )
        every = self.ema_overwrite_frequency
        if every:
            tf.cond(
                tf.equal((self.iterations + 1) % every, 0),
                lambda: self._overwrite_model_variables_with_average_value(
                    self._trainable_variables
                ),
                lambda: None,
            )

    def _overwrite_model_variables_with_average_value(
        self, trainable_variables
    ):
        self._overwrite_by_averages(
            self._distribution_strategy,
            trainable_variables,
            self._model_variables_moving_average,
        )

    def _merge_call(self, function: Callable, *arguments: Any) -> None:
        tf.__internal__.distribute.interim.maybe_merge_call(
            function, self._distribution_strategy, *arguments
        )

    def _sum_over_replicas(self, accumulator):
        replica = tf.distribute.get_replica_context()
        if replica is None:
            return accumulator.read_value()
        return replica.all_reduce(
            tf.distribute.ReduceOp.SUM, accumulator.read_value()
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

    def check_finite(self, grads: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns whether the gradients of every replica are finite."""
        finite = super().check_finite(grads)
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return finite
        overflows = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(finite, tf.float32)
        )
        return tf.equal(overflows, 0.0)
