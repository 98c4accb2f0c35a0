"""LAMB and LARS on tf_keras, the Keras 2 that tf-models-official uses."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from lamb_tf import arguments
from lamb_tf.lamb import Lamb
from lamb_tf.lars import Lars
from lamb_tf.update import LOW_PRECISION, true_dtype


class TfKerasAdapter(tf_keras.optimizers.Optimizer):
    """Binds a layer-wise optimizer to the base class of tf_keras.

    The base class is never told to compile: it would trace once per
    variable. `jit_compile=False` runs the update as an ordinary graph.
    """

    _schedule_class = tf_keras.optimizers.schedules.LearningRateSchedule
    _base_checks = {
        "jit_compile": arguments.flag,
        "mesh": arguments.optional(
            arguments.instance_of(tf.experimental.dtensor.Mesh)
        ),
        # In every config of tf_keras.
        "is_legacy_optimizer": arguments.flag,
    }

    def __init__(
        self,
        learning_rate: Any,
        name: str,
        jit_compile: bool = True,
        **base_kwargs: Any,
    ):
        super().__init__(
            name=name, weight_decay=None, jit_compile=False, **base_kwargs
        )
        self._learning_rate = self._build_learning_rate(learning_rate)
        # DTensor compiles as it likes.
        self._jit_compile_update = jit_compile and self._mesh is None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_is_wrapped_by_loss_scale_optimizer" and value:
            _count_updates_only(self._iterations)

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Creates the slots of `var_list`."""
        if getattr(self, "_built", False):
            return
        super().build(var_list)
        names = self.rule.slots
        slots = [
            [self.add_variable_from_reference(v, name) for name in names]
            for v in var_list
        ]
        for name, values in zip(names, zip(*slots, strict=True), strict=True):
            setattr(self, f"_{name}", list(values))
        self._plan(var_list, slots)
        self._built = True

    def add_variable_from_reference(
        self, model_variable, variable_name, shape=None, initial_value=None
    ) -> tf.Variable:
        """Creates a slot like a variable, in the compute dtype."""
        if true_dtype(model_variable) not in LOW_PRECISION:
            return super().add_variable_from_reference(
                model_variable, variable_name, shape, initial_value
            )
        if self._mesh is not None:
            # Of its layout, too.
            start = tf.zeros_like(model_variable)
            if initial_value is not None:
                start = tf.convert_to_tensor(initial_value)
            variable = tf.experimental.dtensor.DVariable(
                tf.cast(start, tf.float32),
                name=f"{variable_name}/{model_variable._shared_name}",
                trainable=False,
            )
            self._variables.append(variable)
            return variable
        if initial_value is not None:
            initial_value = tf.cast(initial_value, tf.float32)
        reference = _Float32(model_variable)
        # Past the class that would look for the device of `reference`.
        create = super(tf_keras.optimizers.Optimizer, self)
        with self._colocated(model_variable):
            return create.add_variable_from_reference(
                reference, variable_name, shape, initial_value
            )

    def apply_gradients(
        self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kw
    ):
        """Updates the variables; sparse gradients become dense first."""
        grads_and_vars = list(grads_and_vars)
        grads = self._dense(grads_and_vars)
        grads_and_vars = [
            (grad, variable)
            for grad, (_, variable) in zip(grads, grads_and_vars, strict=True)
        ]
        return super().apply_gradients(
            grads_and_vars, name, skip_gradients_aggregation, **kw
        )

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates one variable in place."""
        self._programs.value.move(
            variable, gradient, self.learning_rate, self.iterations
        )

    def _distributed_apply_gradients_fn(
        self, distribution, grads_and_vars, **kwargs
    ):
        grads, variables = zip(*grads_and_vars, strict=True)
        self._move_under(distribution, variables, grads)
        if self.use_ema:
            self._average_under(distribution, variables, self.ema_momentum)
        return self.iterations.assign_add(1)

    # A wrapper for legacy optimizers, such as tf-models' averaging of the
    # weights, asks for the learning rate in this way.
    def _get_hyper(self, name):
        return getattr(self, name)

    def _set_hyper(self, name, value):
        setattr(self, name, value)

    def get_config(self) -> dict[str, Any]:
        """Returns the base arguments, serializable."""
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {
            **super().get_config(),
            "learning_rate": rate if isinstance(rate, dict) else float(rate),
            "jit_compile": self._jit_compile_update,
        }

    def _index(self, variable):
        index = self._index_dict.get(self._var_key(variable))
        if index is None:
            raise ValueError(
                f"Unknown variable: {variable.name}. This optimizer was built "
                "for others; for a new set of variables make a new optimizer."
            )
        return index

    def _new_trust(self, variable):
        # A report and not a state: kept out of `variables`.
        if self._mesh is not None:
            layout = tf.experimental.dtensor.Layout.replicated(self._mesh, 1)
            trust = tf.experimental.dtensor.copy_to_mesh(
                tf.constant(self._NO_TRUST), layout
            )
            return tf.experimental.dtensor.DVariable(trust, trainable=False)
        with self._colocated(variable):
            return tf.Variable(self._NO_TRUST, trainable=False, name="trust")

    def _colocated(self, variable):
        return tf.distribute.get_strategy().extended.colocate_vars_with(
            variable
        )


class _Float32:
    """A variable of low precision as a reference for float32 slots."""

    true_dtype = tf.float32

    def __init__(self, variable: tf.Variable):
        self._variable = variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variable, name)


def _count_updates_only(iterations):
    """Makes a count of steps leave out those that are skipped.

    tf_keras's `LossScaleOptimizer` counts a step that it skips: the
    schedule and the bias correction would run ahead of the moments. It
    alone adds without reading the sum.
    """
    add = iterations.assign_add

    def assign_add(delta, use_locking=False, name=None, read_value=True):
        return add(delta, use_locking, name) if read_value else None

    iterations.assign_add = assign_add


@tf_keras.saving.register_keras_serializable(package="lamb_tf", name="LAMB")
class LAMB(Lamb, TfKerasAdapter):
    """Algorithm 2 of arXiv:1904.00962; see `lamb_tf.lamb.Lamb`."""


@tf_keras.saving.register_keras_serializable(package="lamb_tf", name="LARS")
class LARS(Lars, TfKerasAdapter):
    """LARS in two variants; see `lamb_tf.lars.Lars`."""
