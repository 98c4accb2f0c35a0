"""Checks of constructor arguments; each error names name and value."""

import numbers
from typing import Any


def number(
    name: str, value: Any, lower: float = 0.0, below: float | None = None
) -> float:
    """Returns a float in `[lower, below)`.

    Args:
        name: Name of the argument, for the message.
        value: Any real number.
        lower: Lowest value allowed.
        below: What the value must stay below, or `None` for finite.

    Raises:
        ValueError: If the value is not such a number.
    """
    limit = float("inf") if below is None else below
    # A NaN fails the comparison, and so is refused too.
    if not isinstance(value, numbers.Real) or not lower <= value < limit:
        bounds = f">= {lower:g}"
        if below is not None:
            bounds = f"in [{lower:g}, {below:g})"
        raise ValueError(
            f"`{name}` must be a number {bounds}. Received: {name}={value!r}"
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
