"""LAMB on Keras 3."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from lamb_tf.exclusions import path_of
from lamb_tf.lamb import Lamb
from lamb_tf.update import LOW_PRECISION, compute_dtype, dense

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "lamb_tf needs the TensorFlow backend of Keras. The backend in "
        f"force is {keras.backend.backend()!r}."
    )


class KerasAdapter(keras.optimizers.Optimizer):
    """Binds a layer-wise optimizer to the base class of Keras 3.

    Beyond the binding it corrects four things of the base class: sparse
    gradients are made dense before anything reads them, gradients are
    clipped after the sum over replicas and not before, slots of
    low-precision variables are float32, and a schedule counts updates
    and not accumulated micro-steps.
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
        ratios = [self._new_ratio(v) for v in variables]
        self._plan(variables, list(zip(*slots, strict=True)), masters, ratios)

    def add_variable_from_reference(
        self, reference_variable: Any, name=None, initializer="zeros"
    ) -> keras.Variable:
        """Creates a slot like a variable, in the compute dtype."""
        path = path_of(reference_variable).replace("/", "_")
        with self._colocated(reference_variable):
            return self.add_variable(
                shape=reference_variable.shape,
                initializer=initializer,
                dtype=compute_dtype(reference_variable.dtype).name,
                name=f"{path}_{name or 'var'}",
                layout=getattr(reference_variable, "_layout", None),
            )

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
        index = self._get_variable_index(variable)
        self._move(index, variable, gradient, learning_rate)

    def _clip_gradients(self, grads):
        # Still one per replica here: `_backend_update_step` clips the sum.
        return grads

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        variables = [_native(v) for v in trainable_variables]
        pairs = self._all_reduce_sum_gradients(
            list(zip(grads, variables, strict=True))
        )
        grads = super()._clip_gradients([grad for grad, _ in pairs])
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._distributed_tf_update_step,
            self._distribution_strategy,
            list(zip(grads, variables, strict=True)),
            learning_rate,
        )

    def _get_current_learning_rate(self):
        rate = self._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return rate(self.iterations)
        return super()._get_current_learning_rate()

    def _new_ratio(self, variable):
        # A report and not a state: kept out of `variables`.
        with self._colocated(variable):
            return keras.Variable(
                1.0, dtype="float32", trainable=False, name="trust_ratio"
            )

    def _colocated(self, variable):
        return self._distribution_strategy.extended.colocate_vars_with(
            _native(variable)
        )


def _native(variable):
    if isinstance(variable, keras.Variable):
        return variable.value
    return variable


@keras.saving.register_keras_serializable(package="lamb_tf", name="LAMB")
class LAMB(Lamb, KerasAdapter):
    """Algorithm 2 of arXiv:1904.00962; see `lamb_tf.lamb.Lamb`."""
