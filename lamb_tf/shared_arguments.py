"""The arguments that LAMB and LARS share, and how each is checked."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from lamb_tf import arguments
from lamb_tf.schedules import adopted

CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
SCALES = ("loss_scale_factor", "gradient_accumulation_steps")
# What both base classes take, and how each value is checked.
BASE_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(CLIPS, arguments.optional(arguments.positive)),
    "use_ema": arguments.flag,
    "ema_momentum": arguments.share,
    "ema_overwrite_frequency": arguments.optional(arguments.count_from(1)),
}
# What other libraries, or the other Keras, call it; and what to do here.
ADVICE = {
    "lr": "use `learning_rate`",
    "decay": "pass a schedule as `learning_rate`",
    "weight_decay_rate": "use `weight_decay`",
    "max_grad_norm": "use `global_clipnorm`",
    "jit_compile": "on Keras 3 the update is always compiled",
    "loss_scale_factor": "on tf_keras use its "
    "`mixed_precision.LossScaleOptimizer`",
    "gradient_accumulation_steps": "on tf_keras sum up the gradients before "
    "`apply_gradients()`",
}
# Compiled steps and slots depend on these, and so do those of the rule.
FIXED = {
    "weight_decay",
    "exclude_from_weight_decay",
    "exclude_from_layer_adaptation",
    "trust_coefficient",
    "trust_clip",
    "norm",
    "use_ema",
    "gradient_accumulation_steps",
    "jit_compile",
    "mesh",
}


def base(
    owner: str,
    given: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, Any], Any]],
    advice: Mapping[str, str],
    others: set[str],
) -> dict[str, Any]:
    """Returns the arguments of a base class, each checked.

    Args:
        owner: Name of the optimizer's class, for the message.
        given: The arguments by name.
        checks: Those that there are, and how each is checked.
        advice: Names of other libraries, and what to do here.
        others: Names of the optimizer's own arguments.

    Raises:
        ValueError: If one is unknown, or has a bad value.
    """
    for name, value in given.items():
        if name in checks:
            continue
        message = f"{owner} has no argument `{name}`"
        close = difflib.get_close_matches(name, others | set(checks), 1)
        if name in advice:
            message += f": {advice[name]}"
        elif close:
            message += f": is `{close[0]}` meant?"
        raise ValueError(f"{message}. Received: {name}={value!r}")
    one_clip(given)
    return {name: checks[name](name, value) for name, value in given.items()}


def one_clip(given: Mapping[str, Any]) -> None:
    """Checks that at most one of the clips is set.

    Raises:
        ValueError: If there are more.
    """
    clips = {k: v for k, v in given.items() if k in CLIPS and v is not None}
    if len(clips) > 1:
        raise ValueError(
            "Only one of `clipnorm`, `clipvalue` and `global_clipnorm` "
            "can be set. Received: "
            + ", ".join(f"{k}={v!r}" for k, v in clips.items())
        )


def learning_rate(value: Any, schedule_class: type) -> Any:
    """Returns a float, a schedule of that class, or a function.

    Raises:
        ValueError: If the value is nothing of the kind, or negative.
    """
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value.item()
    if arguments.is_number(value):
        return arguments.number("learning_rate", value)
    if isinstance(value, schedule_class):
        return value
    if callable(value):
        return adopted(value)
    raise ValueError(
        "`learning_rate` must be a number, a schedule, or a function "
        "without arguments that returns the rate, such as "
        f"`lambda: variable`. Received: learning_rate={value!r}"
    )


def trust_clip(value: Any) -> tuple[float, float] | None:
    """Returns the bounds of `phi` as two floats, or `None`.

    Raises:
        ValueError: If they are not two numbers, or out of order.
    """
    if value is None:
        return None
    bounds = tuple(value) if isinstance(value, (list, tuple)) else ()
    if (
        len(bounds) != 2
        or not all(map(arguments.is_number, bounds))
        or not 0.0 <= bounds[0] <= bounds[1]
    ):
        raise ValueError(
            "`trust_clip` must be None or two numbers (lower, upper) with "
            f"0 <= lower <= upper. Received: trust_clip={value!r}"
        )
    return tuple(map(float, bounds))
