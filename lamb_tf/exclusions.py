"""Which variables are excluded from decay and from layer adaptation."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

Entries = Sequence[Any]


def whole_of(variable: Any) -> Any:
    """Returns the `ShardedVariable` that a variable is a part of.

    A variable that is no part is its own whole.
    """
    container = getattr(variable, "_sharded_container", None)
    whole = container and container()
    return variable if whole is None else whole


def path_of(variable: Any) -> str:
    """Returns the path of a variable of either Keras, without `:0`.

    A sharded variable, which has no name of its own, and its parts have
    that of the parts, without their number.
    """
    whole = whole_of(variable)
    parts = getattr(whole, "variables", None)
    if parts:
        return re.sub(r"/part_\d+$", "", parts[0].name.split(":")[0])
    path = getattr(variable, "path", None) or variable.name
    return path.split(":")[0]


class Exclusions:
    """The two exclusion lists, as given, and the rule that reads them.

    An entry is a regular expression searched in the variable's path, or
    a variable. `layer_adaptation=None` means "as the decay list"; `[]`
    excludes nothing, so that every variable is adapted.
    """

    def __init__(
        self, weight_decay: Entries | None, layer_adaptation: Entries | None
    ):
        self.weight_decay = _checked("exclude_from_weight_decay", weight_decay)
        self.layer_adaptation = _checked(
            "exclude_from_layer_adaptation", layer_adaptation
        )

    def resolve(
        self, variables: Sequence[Any], key: Callable[[Any], Any]
    ) -> list[tuple[bool, bool]]:
        """Returns `(decayed, adapted)` of each variable.

        Warns of every entry that matches none of the variables.

        Args:
            variables: Variables of either Keras.
            key: Identity of a variable, as its optimizer defines it.
        """
        decayed = _kept(
            "exclude_from_weight_decay", self.weight_decay, variables, key
        )
        if self.layer_adaptation is None:
            return [(kept, kept) for kept in decayed]
        adapted = _kept(
            "exclude_from_layer_adaptation",
            self.layer_adaptation,
            variables,
            key,
        )
        return list(zip(decayed, adapted, strict=True))

    def get_config(self) -> dict[str, list[str] | None]:
        """Returns both lists as strings; a variable becomes its path."""
        return {
            "exclude_from_weight_decay": _as_patterns(self.weight_decay),
            "exclude_from_layer_adaptation": _as_patterns(
                self.layer_adaptation
            ),
        }


def _checked(argument, entries):
    if entries is None:
        return None
    if isinstance(entries, (str, bytes)) or not isinstance(
        entries, (list, tuple, set, frozenset)
    ):
        # A string is a sequence of one-letter patterns: never meant.
        raise ValueError(
            f"`{argument}` must be a list of regular expressions or "
            f"variables, such as [{str(entries)!r}]. "
            f"Received: {argument}={entries!r}"
        )
    for entry in entries:
        if isinstance(entry, str):
            try:
                re.compile(entry)
            except re.error as error:
                raise ValueError(
                    f"`{argument}` holds {entry!r}, which is not a regular "
                    f"expression: {error}"
                ) from error
        elif not hasattr(entry, "assign"):
            raise ValueError(
                f"`{argument}` must hold regular expressions or variables. "
                f"Received: {entry!r}"
            )
    return list(entries)


def _kept(argument, entries, variables, key):
    kept = [True] * len(variables)
    for entry in entries or ():
        hits = [i for i, v in enumerate(variables) if _matches(entry, v, key)]
        for i in hits:
            kept[i] = False
        if not hits:
            name = entry if isinstance(entry, str) else path_of(entry)
            warnings.warn(
                f"`{argument}` entry {name!r} matches no variable. The "
                f"paths are {', '.join(map(path_of, variables[:3]))}, ...",
                stacklevel=2,
            )
    return kept


def _matches(entry, variable, key):
    if isinstance(entry, str):
        return re.search(entry, path_of(variable)) is not None
    return key(whole_of(entry)) == key(whole_of(variable))


def _as_patterns(entries):
    if entries is None:
        return None
    return [
        entry if isinstance(entry, str) else f"^{re.escape(path_of(entry))}$"
        for entry in entries
    ]
