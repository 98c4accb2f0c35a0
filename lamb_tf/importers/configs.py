"""The arguments of other LAMBs, translated into those of ours.

Sources: tensorflow_addons/optimizers/lamb.py (0.23; its releases before
0.18 say `weight_decay_rate`), official/modeling/optimization/lamb.py of
tf-models-official 2.20, keras/src/optimizers/lamb.py (3.15).
"""

import numbers
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_CLIPPING = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}
_ADDONS = {
    "name": "LAMB",
    "learning_rate": None,
    "decay": 0.0,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epsilon": 1e-6,
    "weight_decay": 0.0,
    "exclude_from_weight_decay": None,
    "exclude_from_layer_adaptation": None,
    **_CLIPPING,
}
_KERAS_3_ONLY = ("loss_scale_factor", "gradient_accumulation_steps")
_KERAS = {
    "name": "lamb",
    "learning_rate": None,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epsilon": 1e-7,
    "weight_decay": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    **dict.fromkeys(_KERAS_3_ONLY),
    **_CLIPPING,
}
_OLD_NAMES = {"weight_decay_rate": "weight_decay", "lr": "learning_rate"}


def translate(
    config: Mapping[str, Any], overrides: Mapping[str, Any], on_keras_3: bool
) -> tuple[dict[str, Any], list[str]]:
    """Returns our arguments, and what a run with them does differently.

    Args:
        config: What the peer's `get_config()`, either Keras's
            `optimizers.serialize()`, or the `as_dict()` of tf-models'
            `LAMBConfig`, `OptimizerConfig` or `OptimizationConfig` gave.
        overrides: Arguments of ours that stand whatever `config` says.
        on_keras_3: Whether the arguments are for Keras 3.

    Returns:
        The arguments, a schedule still serialized; and the differences.

    Raises:
        ValueError: If the config is of no LAMB, or if an argument is
            unknown, missing, or has no counterpart.
    """
    known, given = _unwrapped(config)
    for old, new in _OLD_NAMES.items():
        if old in given:
            if new in given:
                raise ValueError(
                    f"The config holds both `{old}={given[old]!r}` and "
                    f"`{new}={given[new]!r}`. Remove one of them."
                )
            given[new] = given.pop(old)
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ValueError(
            f"The config holds {unknown[0]}={given[unknown[0]]!r}, which is "
            f"no argument of {_name(known)}. Known are {sorted(known)}."
        )
    arguments = {k: _decimal(v) for k, v in {**known, **given}.items()}
    # What is overridden needs no translation, and may be missing.
    arguments.update(overrides)
    if arguments["learning_rate"] is None:
        raise ValueError(
            "The config holds no learning rate. Pass `learning_rate=`, a "
            "float or a schedule."
        )
    if known is _ADDONS:
        return _from_addons(arguments, given, overrides)
    return _from_keras(arguments, overrides, on_keras_3)


def schedule(rate: Any, keras: Any) -> Any:
    """Returns a learning rate of a config, as an object of `keras`.

    Args:
        rate: A float, a schedule, or a schedule serialized by any Keras.
        keras: The module `keras` or `tf_keras`.

    Raises:
        ValueError: If that Keras has no such schedule.
    """
    if not isinstance(rate, Mapping):
        return rate
    name = rate.get("class_name")
    base = keras.optimizers.schedules.LearningRateSchedule
    # By name: the module it was written from is another Keras's.
    found = getattr(keras.optimizers.schedules, str(name), None)
    if found is None:
        found = keras.saving.get_registered_object(
            rate.get("registered_name") or str(name)
        )
    try:
        if isinstance(found, type) and issubclass(found, base):
            # Keras 2 writes a name of None, which Keras 3 does not take.
            given = {k: v for k, v in rate["config"].items() if v is not None}
            return found.from_config(given)
        reason = "no such schedule"
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"The learning rate {name!r} can not be made in {keras.__name__}: "
        f"{reason}. Import the module that registers it, or pass "
        f"`learning_rate=`. Received: {dict(rate)!r}"
    )


def _unwrapped(config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the known arguments of the writer, and those given."""
    if not isinstance(config, Mapping):
        raise ValueError(
            "`config` must be a dictionary, such as `optimizer.get_config()` "
            f"returns. Received: config={config!r}"
        )
    if isinstance(config.get("optimizer"), Mapping):
        config = config["optimizer"]
    if "type" in config:
        if config["type"] != "lamb":
            raise ValueError(
                "Only tf-models' optimizer type 'lamb' can be imported. "
                f"Received: type={config['type']!r}"
            )
        # In tf-models' dataclass what is not written is known all the same.
        lists = {k: None for k in _ADDONS if k.startswith("exclude_")}
        return _ADDONS, {**lists, **(config.get("lamb") or {})}
    if "class_name" in config:
        name = config.get("registered_name") or config["class_name"]
        known = {"Addons>LAMB": _ADDONS, "LAMB": _ADDONS, "Lamb": _KERAS}
        if name not in known or "config" not in config:
            raise ValueError(
                f"A config of {name!r} can not be imported. Known are "
                f"{sorted(known)}; of a wrapper, such as a "
                "LossScaleOptimizer, pass the inner optimizer's config; "
                "for one of lamb_tf itself call `LAMB.from_config()`."
            )
        return known[name], dict(config["config"])
    if config.keys() & {"decay", "weight_decay_rate"}:
        return _ADDONS, dict(config)
    if config.keys() & {"use_ema", *_KERAS_3_ONLY}:
        return _KERAS, dict(config)
    raise ValueError(
        "The config does not say whose it is. Pass what "
        "`keras.optimizers.serialize(optimizer)` returns, or "
        "{'class_name': 'Addons>LAMB' or 'Lamb', 'config': config}. "
        f"Received: {dict(config)!r}"
    )


def _from_addons(arguments, given, overrides):
    decay = arguments.pop("decay")
    rate = arguments["learning_rate"]
    if decay and "learning_rate" not in overrides:
        if not isinstance(rate, numbers.Real):
            raise ValueError(
                f"`decay={decay}` divides a schedule's rate once more, and "
                "no schedule of Keras does. Pass `learning_rate=`, a "
                f"schedule that does both. Received: learning_rate={rate!r}"
            )
        # rate / (1 + decay * iterations): OptimizerV2._decayed_lr.
        arguments["learning_rate"] = {
            "class_name": "InverseTimeDecay",
            "config": {
                "initial_learning_rate": rate,
                "decay_steps": 1,
                "decay_rate": decay,
            },
        }
    for key in ("exclude_from_weight_decay", "exclude_from_layer_adaptation"):
        if key not in overrides and arguments[key]:
            arguments[key] = [_pattern(p) for p in arguments[key]]
    if "exclude_from_layer_adaptation" not in overrides:
        # An empty list is as the decay list there, and adapts all here.
        arguments["exclude_from_layer_adaptation"] = (
            arguments["exclude_from_layer_adaptation"] or None
        )
    for beta in {"beta_1", "beta_2"} - overrides.keys():
        # OptimizerV2 computes with the float32 next to it, so its moments
        # carry 1 - 0.99900001 and not 1 - 0.999: 1.3e-5 of v, were it lost.
        arguments[beta] = float(np.float32(arguments[beta]))
    differences = []
    if not {**given, **overrides}.keys() & {"exclude_from_weight_decay"}:
        differences.append(
            "The config does not say which variables were excluded: tf-models "
            "and old releases of Addons do not save it. None is; pass "
            "`exclude_from_weight_decay=` and `exclude_from_layer_adaptation=`"
        )
    return arguments, differences


def _from_keras(arguments, overrides, on_keras_3):
    differences = []
    if "weight_decay" not in overrides:
        decay = arguments["weight_decay"] = arguments["weight_decay"] or 0.0
        if decay:
            differences.append(
                f"weight_decay={decay}: Keras's Lamb shrinks the weights by "
                "learning_rate * weight_decay before the step and outside "
                "the trust ratio; here the decay is part of the step that "
                "the ratio scales (arXiv:1904.00962, Algorithm 2)"
            )
            if "exclude_from_weight_decay" not in overrides:
                differences.append(
                    "Keras does not save `exclude_from_weight_decay()`. No "
                    "variable is excluded; pass `exclude_from_weight_decay=`"
                )
    # Keras's Lamb adapts every variable, decayed or not.
    arguments.setdefault("exclude_from_layer_adaptation", [])
    steps = arguments["gradient_accumulation_steps"]
    if steps and not isinstance(arguments["learning_rate"], numbers.Real):
        differences.append(
            f"gradient_accumulation_steps={steps}: Keras's schedule counts "
            "micro-steps; here it counts updates"
        )
    clips = [k for k in ("clipnorm", "global_clipnorm") if arguments[k]]
    if clips:
        differences.append(
            f"{clips[0]}={arguments[clips[0]]}: with several replicas Keras "
            "clips each one's gradient; here their sum is clipped"
        )
    for key in () if on_keras_3 else _KERAS_3_ONLY:
        value = arguments.pop(key)
        if value is not None:
            raise ValueError(
                f"tf_keras has no `{key}`. Import into `lamb_tf.keras.LAMB`, "
                f"or remove it from the config. Received: {key}={value!r}"
            )
    return arguments, differences


def _pattern(entry: str) -> str:
    """Returns a pattern for paths from one for Addons' `variable.name`.

    That name is the path and ":0".
    """
    pattern = re.sub(r":0\$?$", "$", entry) if isinstance(entry, str) else entry
    if re.search(r":\\?d|:\d", str(pattern)):
        raise ValueError(
            f"The exclusion pattern {entry!r} asks for the ':0' of a name, "
            "which a path lacks. Pass `exclude_from_weight_decay=` and "
            "`exclude_from_layer_adaptation=`."
        )
    return pattern


def _decimal(value: Any) -> Any:
    """Returns 0.9 for 0.8999999761581421.

    A Keras reads scalars back from float32 variables. Where a number is
    one in float32, the shortest decimal of it is what was written.
    """
    if isinstance(value, (float, np.floating)):
        single = np.float32(value)
        if float(single) == float(value):
            return float(str(single))
    return value


def _name(known) -> str:
    return "Addons' or tf-models' LAMB" if known is _ADDONS else "Keras's Lamb"
