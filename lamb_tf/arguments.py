"""Checks of constructor arguments; each error names name and value."""

import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def is_number(value: Any) -> bool:
    """Returns whether `value` is a real number, which no boolean is."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def number(
    name: str, value: Any, lower: float = 0.0, below: float | None = None
) -> float:
    """Returns a float in `[lower, below)`.

    Args:
        name: Name of the argument, for the message.
        value: Any real number, but no boolean.
        lower: Lowest value allowed.
        below: What the value must stay below, or `None` for finite.

    Raises:
        ValueError: If the value is not such a number.
    """
    limit = float("inf") if below is None else below
    # A NaN fails the comparison, and so is refused too.
    if not is_number(value) or not lower <= value < limit:
        bounds = f">= {lower:g}"
        if below is not None:
            bounds = f"in [{lower:g}, {below:g})"
        raise ValueError(
            f"`{name}` must be a number {bounds}. Received: {name}={value!r}"
        )
    return float(value)


def positive(name: str, value: Any) -> float:
    """Returns a finite float above 0.

    Args:
        name: Name of the argument, for the message.
        value: Any real number.

    Raises:
        ValueError: If the value is not such a number.
    """
    if not is_number(value) or not 0.0 < value < float("inf"):
        raise ValueError(
            f"`{name}` must be a number > 0. Received: {name}={value!r}"
        )
    return float(value)


def count(name: str, value: Any, lower: int, upper: int) -> int:
    """Returns an integer in `[lower, upper]`.

    Args:
        name: Name of the argument, for the message.
        value: Any integer, but no boolean.
        lower: Lowest value allowed.
        upper: Highest value allowed.

    Raises:
        ValueError: If the value is not such an integer.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or not lower <= value <= upper
    ):
        raise ValueError(
            f"`{name}` must be an integer in [{lower}, {upper}]. "
            f"Received: {name}={value!r}"
        )
    return int(value)


def choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """Returns `value`, if it is one of `choices`.

    Args:
        name: Name of the argument, for the message.
        value: Anything.
        choices: What is allowed.

    Raises:
        ValueError: If the value is none of them.
    """
    # By identity of kind too: 1 is not True, and False is not None.
    for allowed in choices:
        if type(value) is type(allowed) and value == allowed:
            return allowed
    raise ValueError(
        f"`{name}` must be one of {', '.join(map(repr, choices))}. "
        f"Received: {name}={value!r}"
    )


def flag(name: str, value: Any) -> bool:
    """Returns a boolean, and raises for anything else.

    Args:
        name: Name of the argument, for the message.
        value: A boolean of Python or NumPy.

    Raises:
        ValueError: If the value is no boolean.
    """
    if isinstance(value, np.bool_):
        value = bool(value)
    return choice(name, value, (False, True))


def share(name: str, value: Any) -> float:
    """Returns a float in `[0, 1]`.

    Args:
        name: Name of the argument, for the message.
        value: Any real number.

    Raises:
        ValueError: If the value is not such a number.
    """
    if not is_number(value) or not 0.0 <= value <= 1.0:
        raise ValueError(
            f"`{name}` must be a number in [0, 1]. Received: {name}={value!r}"
        )
    return float(value)


def scope(name: str, value: Any) -> str:
    """Returns a string that can name a scope of TensorFlow.

    Args:
        name: Name of the argument, for the message.
        value: Letters, digits and `_.>-`, from a letter, digit or `.` on.

    Raises:
        ValueError: If the value is not such a string.
    """
    if not isinstance(value, str) or not re.fullmatch(
        r"[A-Za-z0-9.][A-Za-z0-9_.>-]*", value
    ):
        raise ValueError(
            f"`{name}` must be a string of letters, digits and '_.>-' that "
            f"starts with a letter, a digit or '.'. Received: {name}={value!r}"
        )
    return value


def count_from(lower: int) -> Callable[[str, Any], int]:
    """Returns the check of an integer `>= lower`."""
    return lambda name, value: count(name, value, lower, 2**31 - 1)


def instance_of(cls: type) -> Callable[[str, Any], Any]:
    """Returns the check of an instance of `cls`."""

    def checked(name, value):
        if not isinstance(value, cls):
            raise ValueError(
                f"`{name}` must be a {cls.__name__}. Received: {name}={value!r}"
            )
        return value

    return checked


def optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Returns `check`, but for `None`, which then passes."""

    def checked(name, value):
        return None if value is None else check(name, value)

    return checked
