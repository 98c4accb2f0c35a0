"""The half of every optimizer that knows neither Keras.

`LayerwiseOptimizer` holds the strategy's arguments, plan and report;
`lamb.py` and `lars.py` add the arguments of their algorithms. An adapter
(`keras.py`, `tf_keras.py`) mixes them into a base class and supplies
slots.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lamb_tf import arguments, shared_arguments
from lamb_tf.exclusions import Exclusions, path_of, whole_of
from lamb_tf.layerwise import NORMS, Layer, Norm, Trust
from lamb_tf.layout import Layout, check
from lamb_tf.programs import Programs
from lamb_tf.rules import Lamb, Lars
from lamb_tf.shared_arguments import ADVICE, BASE_CHECKS, CLIPS, FIXED, SCALES
from lamb_tf.update import (
    LOW_PRECISION,
    Entry,
    compute_dtype,
    dense,
    native,
    refined,
    true_dtype,
)


class LayerwiseOptimizer:
    """The layer-wise strategy as a mixin in front of a Keras optimizer.

    The class behind it takes `learning_rate`, `name` and the base
    arguments, calls `_plan` when built and `_move_under` at each step,
    and says by `_index` where a variable stands in the order of the build.
    """

    # Platform the step is compiled for, such as "TPU"; None means that of
    # each variable. To be set before the build, to compile for another one.
    target_platform: str | None = None
    # Whether the update is an XLA program; an adapter may let users choose.
    _jit_compile_update = True
    # Of a variable that no step has moved yet.
    _NO_TRUST = (1.0, float("nan"), float("nan"))
    # Names that other libraries have for arguments, and what to do here.
    _advice: dict[str, str] = {}
    # Further arguments of an adapter's base class, and how to check them.
    _base_checks: dict[str, Callable[[str, Any], Any]]
    # The adapter's own class of schedules.
    _schedule_class: type
    _made = False

    def __init__(
        self,
        rule: Lamb | Lars,
        *,
        learning_rate: Any,
        weight_decay: float,
        exclude_from_weight_decay: Sequence[Any] | None,
        exclude_from_layer_adaptation: Sequence[Any] | None,
        trust_clip: Sequence[float] | None,
        norm: Norm,
        name: str,
        trust_coefficient: float = 1.0,
        **base_kwargs: Any,
    ):
        base_kwargs = shared_arguments.base(
            type(self).__name__,
            base_kwargs,
            {**BASE_CHECKS, **self._base_checks},
            {**ADVICE, **self._advice},
            {*FIXED, *vars(rule), "learning_rate"},
        )
        learning_rate = self._checked_rate(learning_rate)
        name = arguments.scope("name", name)
        weight_decay = arguments.number("weight_decay", weight_decay)
        trust_coefficient = arguments.positive(
            "trust_coefficient", trust_coefficient
        )
        trust_clip = shared_arguments.trust_clip(trust_clip)
        norm = arguments.choice("norm", norm, NORMS)
        exclusions = Exclusions(
            exclude_from_weight_decay, exclude_from_layer_adaptation
        )
        super().__init__(learning_rate=learning_rate, name=name, **base_kwargs)
        # Set after the base class, which would decay outside the ratio.
        self.weight_decay = weight_decay
        self.trust_coefficient = trust_coefficient
        self.norm = norm
        self._rule = rule
        self._exclusions = exclusions
        self._trust_clip = _Opaque(trust_clip)
        self._entries = _Opaque([])
        self._pending = _Opaque(None)
        self._read_trusts = _Opaque(None)
        self._variables_unbuilt = len(self.variables)
        self._layout = Layout()
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._made and (name in FIXED or hasattr(self._rule, name)):
            raise AttributeError(
                f"`{name}` cannot be set: steps compiled before would not "
                f"see it. Make another {type(self).__name__} with "
                f"{name}={value!r}."
            )
        check = BASE_CHECKS.get(name) or self._base_checks.get(name)
        if check is not None:
            value = check(name, value)
        if name in CLIPS and value is not None:
            clips = {clip: getattr(self, clip, None) for clip in CLIPS}
            shared_arguments.one_clip({**clips, name: value})
        super().__setattr__(name, value)

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the update at hand, a scalar.

        It can be set to a float and, on an optimizer made with one, to a
        schedule.
        """
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if not tf.is_tensor(value):
            value = self._checked_rate(value)
        base = super(LayerwiseOptimizer, type(self)).learning_rate
        base.fset(self, value)

    @property
    def rule(self) -> Lamb | Lars:
        """The algorithm with this optimizer's scalars."""
        return self._rule

    @property
    def trust_clip(self) -> tuple[float, float] | None:
        """The bounds of `phi`, or `None` for the identity."""
        return self._trust_clip.value

    @property
    def trust_ratios(self) -> dict[str, tf.Tensor]:
        """The last trust ratio of each variable, by its path.

        float32 scalars, 1 before the first step. They are written inside
        the step and read here, so that a step never waits for the host.
        """
        return {path: trust.ratio for path, trust in self.trusts.items()}

    @property
    def trusts(self) -> dict[str, Trust]:
        """The last ratio, `w_norm` and `u_norm` of each variable.

        float32 scalars by the variable's path; the norms are NaN before
        the first step, and for a variable that is not adapted.
        """
        return {
            entry.path: Trust(*tf.unstack(tf.convert_to_tensor(entry.trust)))
            for entry in self._entries.value
        }

    def trust_table(self) -> tf.Tensor:
        """Returns `trusts` as one float32 tensor of shape `[n, 3]`.

        Its rows stand in the order of `describe()`. One call to TensorFlow
        and one transfer from the device, where `trusts` makes one for
        each variable.
        """
        read = self._read_trusts.value
        return tf.zeros([0, len(self._NO_TRUST)]) if read is None else read()

    def describe(self) -> str:
        """Returns a table: variable, shape, decayed?, adapted?."""
        rows = [("variable", "shape", "decayed", "adapted")]
        for entry in self._layers():
            decayed = bool(entry.layer.weight_decay)
            rows.append(
                (
                    entry.path,
                    str(entry.shape),
                    "yes" if decayed else "no",
                    "yes" if entry.layer.adapted else "no",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
        )

    def __format__(self, spec: str) -> str:
        # Before the build there is no table, and Keras names by `format` an
        # optimizer that it does not take, such as one of the other Keras.
        built = bool(self._entries.value)
        return format(self.describe() if built else repr(self), spec)

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] = (), var_names: Sequence[str] = ()
    ) -> None:
        """Sets the decay exclusions, as the method of the base classes.

        Args:
            var_list: Variables.
            var_names: Regular expressions searched in the paths.

        Raises:
            ValueError: If the optimizer is built already.
        """
        if self._entries.value:
            raise ValueError(
                "`exclude_from_weight_decay()` must be called before the "
                "optimizer is built."
            )
        self._exclusions = Exclusions(
            [*(var_list or ()), *(var_names or ())],
            self._exclusions.layer_adaptation,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns every constructor argument, serializable."""
        clip = self.trust_clip
        return {
            **super().get_config(),
            **dataclasses.asdict(self.rule),
            **self._exclusions.get_config(),
            "weight_decay": self.weight_decay,
            "trust_clip": None if clip is None else list(clip),
            "norm": self.norm,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None):
        """Creates an optimizer from its config, which stays unchanged."""
        config = dict(config)
        if isinstance(config.get("learning_rate"), dict):
            rate = copy.deepcopy(config["learning_rate"])
            # The reader of tf_keras's .h5 looks for the class name alone.
            rate["class_name"] = (
                rate.get("registered_name") or rate["class_name"]
            )
            config["learning_rate"] = rate
        return super().from_config(config, custom_objects)

    def load_own_variables(self, store: Any) -> None:
        """Restores the state, at build if the slots are not there yet.

        The base classes skip the state of an optimizer without slots, and
        state that does not fit.

        Raises:
            ValueError: If the state has other shapes. Nothing is changed
                then.
        """
        if not self._entries.value:
            self._pending = _Opaque(
                {key: np.array(store[key]) for key in store.keys()}
            )
            # The count is the first, and there already.
            self.variables[0].assign(self._pending.value["0"])
            return
        saved = [store[str(i)] for i in range(len(store.keys()))]
        if len(saved) == self._variables_unbuilt and not int(saved[0][()]):
            # Saved before the first step: there were no slots yet.
            saved += [v.numpy() for v in self.variables[len(saved) :]]
        check(self._shapes(), [tuple(value.shape) for value in saved])
        for variable, value in zip(self.variables, saved, strict=True):
            variable.assign(value)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all variables, in the order of `variables`.

        Before the build, as by Keras's reader of .h5, they are kept for it.

        Raises:
            ValueError: If there are more or fewer, or of other shapes.
        """
        self.load_own_variables(
            {str(i): np.array(weight) for i, weight in enumerate(weights)}
        )

    def _checked_rate(self, rate):
        return shared_arguments.learning_rate(rate, self._schedule_class)

    def _shapes(self):
        return [tuple(variable.shape) for variable in self.variables]

    def _plan(
        self,
        variables: Sequence[Any],
        slots: Sequence[Sequence[Any]],
    ) -> None:
        """Settles, at build, what is done with each variable.

        Args:
            variables: The weights.
            slots: Of each of them, those of `rule.slots`.
        """
        masters = [
            self.add_variable_from_reference(v, "master")
            if true_dtype(v) in LOW_PRECISION
            else None
            for v in variables
        ]
        self._masters = [m for m in masters if m is not None]
        trusts = self._new_trusts(variables)
        flags = self._exclusions.resolve(variables, self._var_key)
        self._entries = _Opaque(
            [
                Entry(
                    path=path_of(variable),
                    shape=tuple(whole_of(variable).shape),
                    layer=Layer(
                        weight_decay=self.weight_decay if decayed else 0.0,
                        adapted=adapted,
                        trust_clip=self.trust_clip,
                        norm=self.norm,
                        trust_coefficient=self.trust_coefficient,
                        by_rows=self._compiles_for_cpu(variable),
                    ),
                    slots=tuple(slot),
                    master=master,
                    trust=trust,
                )
                for variable, (decayed, adapted), slot, master, trust in zip(
                    variables, flags, slots, masters, trusts, strict=True
                )
            ]
        )
        self._programs = _Opaque(
            Programs(
                self.rule,
                self._entries.value,
                self._index,
                self._jit_compile_update,
            )
        )
        # A partial: TensorFlow counts traces by the code of a function, and
        # would warn of the optimizers that one process makes.
        self._read_trusts = _Opaque(
            tf.function(
                functools.partial(_stacked_trusts, self._layers()),
                autograph=False,
            )
        )
        self._layout.settle(self._shapes())
        if self._pending.value is not None:
            pending, self._pending = self._pending.value, _Opaque(None)
            with tf.init_scope():
                self.load_own_variables(pending)

    def _layers(self) -> list[Entry]:
        """Returns one entry of each layer; parts of a whole share theirs."""
        return list({id(e.trust): e for e in self._entries.value}.values())

    def _new_trusts(self, variables: Sequence[Any]) -> list[Any]:
        """Returns the `trust` of each variable; parts of a whole share one."""
        trusts = {}
        for variable in variables:
            key = id(whole_of(variable))
            if key not in trusts:
                trusts[key] = self._new_trust(variable)
        return [trusts[id(whole_of(variable))] for variable in variables]

    def _compiles_for_cpu(self, variable: Any) -> bool:
        platform = self.target_platform
        if platform is None:
            device = tf.DeviceSpec.from_string(native(variable).device)
            platform = device.device_type
        return platform == "CPU" and self._jit_compile_update

    def _move_under(self, strategy, variables, gradients) -> None:
        """Updates variables: see `Programs.move_under`."""
        self._programs.value.move_under(
            strategy, variables, gradients, self.learning_rate, self.iterations
        )

    def _dense(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Returns each gradient as a dense tensor; `None` stays.

        In the compute dtype where anything reads it before the update: a
        square, or a sum over replicas, may overflow in low precision.
        """
        is_read = tf.distribute.has_strategy() or any(
            getattr(self, name, None) for name in (*CLIPS, *SCALES)
        )
        gradients = []
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                gradient = dense(gradient, variable)
                if is_read:
                    gradient = tf.cast(gradient, compute_dtype(variable.dtype))
            gradients.append(gradient)
        return gradients

    def _average_under(
        self,
        strategy: tf.distribute.Strategy,
        variables: Sequence[Any],
        momentum: Any,
    ) -> None:
        """Moves each average towards its variable, or its master copy.

        And overwrites the variables by their averages, where it is time.
        """

        def move(average, weights, master, momentum):
            momentum = tf.cast(momentum, average.dtype)
            if master is not None:
                weights = refined(
                    tf.convert_to_tensor(weights), tf.convert_to_tensor(master)
                )
            average.assign(momentum * average + (1.0 - momentum) * weights)

        for variable, average in self._averages_of(variables):
            master = self._entries.value[self._index(variable)].master
            strategy.extended.update(
                native(average),
                move,
                args=(native(variable), native(master), momentum),
                group=False,
            )
        every = self.ema_overwrite_frequency
        if every:
            tf.cond(
                tf.equal((self.iterations + 1) % every, 0),
                lambda: self._overwrite_model_variables_with_average_value(
                    variables
                ),
                lambda: None,
            )

    def _overwrite_model_variables_with_average_value(self, variables) -> None:
        """Sets each variable to its average, as in the base classes."""
        for variable, average in self._averages_of(variables):
            self._distribution_strategy.extended.update(
                native(variable),
                lambda v, a: v.assign(tf.cast(a, v.dtype)),
                args=(native(average),),
                group=False,
            )

    def _averages_of(self, variables):
        """Returns pairs of variable and average, of those that have one."""
        # By index: `fit` may hand over fewer, where layers are frozen.
        averages = [
            self._model_variables_moving_average[self._index(v)]
            for v in variables
        ]
        pairs = zip(variables, averages, strict=True)
        return [(v, average) for v, average in pairs if average is not None]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: the decay stands inside the ratio."""


def _stacked_trusts(entries):
    return tf.stack([native(entry.trust).read_value() for entry in entries])


@dataclasses.dataclass(frozen=True)
class _Opaque:
    """Keeps a value out of Keras's attribute tracking and checkpoints."""

    value: Any
