"""The half of every optimizer that knows neither Keras.

`LayerwiseOptimizer` holds the strategy's arguments, plan and report;
`lamb.py` adds the arguments of Algorithm 2. An adapter (`keras.py`,
`tf_keras.py`) mixes them into a base class and supplies slots.
"""

import copy
import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lamb_tf import arguments
from lamb_tf import update as update_lib
from lamb_tf.exclusions import Exclusions, path_of
from lamb_tf.layerwise import Layer

_RENAMED = {"weight_decay_rate": "weight_decay"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One variable's place in the optimizer."""

    path: str
    shape: tuple[int, ...]
    layer: Layer
    slots: tuple[Any, ...]
    master: Any | None
    ratio: Any


class LayerwiseOptimizer:
    """The layer-wise strategy as a mixin in front of a Keras optimizer.

    The class behind it takes `learning_rate`, `name` and the base
    arguments, and calls `_plan` when built and `_move` per variable.
    """

    # Platform the step is compiled for, such as "TPU"; None means that of
    # each variable. To be set before the build, to compile for another one.
    target_platform: str | None = None
    # Whether the update is an XLA program; an adapter may let users choose.
    _jit_compile_update = True

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float,
        exclude_from_weight_decay: Sequence[Any] | None,
        exclude_from_layer_adaptation: Sequence[Any] | None,
        trust_clip: Sequence[float] | None,
        name: str,
        **base_kwargs: Any,
    ):
        for old, new in _RENAMED.items():
            if old in base_kwargs:
                raise ValueError(
                    f"`{old}` is called `{new}` here. Received: "
                    f"{old}={base_kwargs[old]!r}"
                )
        if isinstance(learning_rate, numbers.Real):
            learning_rate = arguments.number("learning_rate", learning_rate)
        weight_decay = arguments.number("weight_decay", weight_decay)
        trust_clip = _check_trust_clip(trust_clip)
        exclusions = Exclusions(
            exclude_from_weight_decay, exclude_from_layer_adaptation
        )
        super().__init__(learning_rate=learning_rate, name=name, **base_kwargs)
        # Set after the base class, which would decay outside the ratio.
        self.weight_decay = weight_decay
        self._exclusions = exclusions
        self._trust_clip = _Opaque(trust_clip)
        self._entries = _Opaque([])
        self._pending = _Opaque(None)
        self._programs = _Opaque({})

    @property
    def trust_clip(self) -> tuple[float, float] | None:
        """The bounds of `phi`, or `None` for the identity."""
        return self._trust_clip.value

    @property
    def rule(self):
        """The base update, a hashable function of `rules.py`."""
        raise NotImplementedError

    @property
    def trust_ratios(self) -> dict[str, tf.Tensor]:
        """The last trust ratio of each variable, by its path.

        float32 scalars, 1 before the first step. They are written inside
        the step and read here, so that a step never waits for the host.
        """
        return {
            entry.path: tf.convert_to_tensor(entry.ratio)
            for entry in self._entries.value
        }

    def describe(self) -> str:
        """Returns a table: variable, shape, decayed?, adapted?."""
        rows = [("variable", "shape", "decayed", "adapted")]
        for entry in self._entries.value:
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
        return format(self.describe(), spec)

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
            **self._exclusions.get_config(),
            "weight_decay": self.weight_decay,
            "trust_clip": None if clip is None else list(clip),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None):
        """Creates an optimizer from its config, which stays unchanged."""
        config = dict(config)
        if isinstance(config.get("learning_rate"), dict):
            config["learning_rate"] = copy.deepcopy(config["learning_rate"])
        return super().from_config(config, custom_objects)

    def load_own_variables(self, store: Any) -> None:
        """Restores the state, at build if the slots are not there yet.

        The base classes skip the state of an optimizer without slots.
        """
        if self._entries.value:
            super().load_own_variables(store)
        else:
            self._pending = _Opaque(
                {key: np.array(store[key]) for key in store.keys()}
            )

    def _plan(
        self,
        variables: Sequence[Any],
        slots: Sequence[Sequence[Any]],
        masters: Sequence[Any | None],
        ratios: Sequence[Any],
    ) -> None:
        """Settles, at build, what is done with each variable."""
        flags = self._exclusions.resolve(variables, self._var_key)
        self._entries = _Opaque(
            [
                Entry(
                    path=path_of(variable),
                    shape=tuple(variable.shape),
                    layer=Layer(
                        weight_decay=self.weight_decay if decayed else 0.0,
                        adapted=adapted,
                        trust_clip=self.trust_clip,
                        by_rows=self._compiles_for_cpu(variable),
                    ),
                    slots=tuple(slot),
                    master=master,
                    ratio=ratio,
                )
                for variable, (decayed, adapted), slot, master, ratio in zip(
                    variables, flags, slots, masters, ratios, strict=True
                )
            ]
        )
        if self._pending.value is not None:
            with tf.init_scope():
                super().load_own_variables(self._pending.value)
            self._pending = _Opaque(None)

    def _compiles_for_cpu(self, variable: Any) -> bool:
        platform = self.target_platform
        if platform is None:
            device = tf.DeviceSpec.from_string(_native(variable).device)
            platform = device.device_type
        return platform == "CPU" and self._jit_compile_update

    def _move(
        self,
        index: int,
        variable: Any,
        gradient: tf.Tensor,
        learning_rate: Any,
    ) -> None:
        """Updates the variable in place of `index`, on its device."""
        entry = self._entries.value[index]
        device = variable.device
        programs = self._programs.value
        # A function for each shape: one for all would trace as often, and
        # TensorFlow would warn of it.
        key = entry.layer, tuple(variable.shape), str(variable.dtype)
        if key not in programs:
            programs[key] = update_lib.program(
                self.rule, entry.layer, self._jit_compile_update
            )
        programs[key](
            _local(variable, device),
            update_lib.dense(gradient, variable),
            tf.convert_to_tensor(learning_rate),
            tf.convert_to_tensor(self.iterations),
            _local(entry.ratio, device),
            None if entry.master is None else _local(entry.master, device),
            *(_local(slot, device) for slot in entry.slots),
        )

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: the decay stands inside the ratio."""


def _check_trust_clip(value):
    if value is None:
        return None
    bounds = tuple(value) if isinstance(value, (list, tuple)) else ()
    if (
        len(bounds) != 2
        or not all(isinstance(bound, numbers.Real) for bound in bounds)
        or not 0.0 <= bounds[0] <= bounds[1]
    ):
        raise ValueError(
            "`trust_clip` must be None or two numbers (lower, upper) with "
            f"0 <= lower <= upper. Received: trust_clip={value!r}"
        )
    return tuple(map(float, bounds))


@dataclasses.dataclass(frozen=True)
class _Opaque:
    """Keeps a value out of Keras's attribute tracking and checkpoints."""

    value: Any


def _native(variable):
    value = getattr(variable, "value", None)
    # A variable of Keras 3 holds one; that of TensorFlow has a method.
    return value if isinstance(value, tf.Variable) else variable


def _local(variable, device):
    """Returns the component of a variable that lives on `device`."""
    components = tf.distribute.get_strategy().experimental_local_results(
        _native(variable)
    )
    for component in components:
        if component.device == device:
            return component
    return components[0]
