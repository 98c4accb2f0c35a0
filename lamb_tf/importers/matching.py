"""Which variable of a file is which of ours, by name, as pure functions."""

import re
from collections.abc import Mapping, Sequence


def match(
    paths: Sequence[str],
    theirs: Sequence[tuple[str, str]],
    names: Mapping[str, str],
    allow_unmatched: Sequence[str] = (),
) -> dict[int, int]:
    """Pairs our variables with those of a file.

    A pair has the longest common tail, in whole components, of all that
    either could form; of those, the fewest components before it; and
    alone has both. The tail is at least the layer's and the variable's
    own name, or the whole of one of both names.

    Args:
        paths: Our variables' paths, such as `"model/dense/kernel"`.
        theirs: Of each variable of the file the name, and the path of
            attributes in the file.
        names: Of some of `paths` the name or path in the file.
        allow_unmatched: Regular expressions, for either side: what one
            of them is found in may stay alone.

    Returns:
        Our index to theirs.

    Raises:
        ValueError: If a variable has no partner or several, or if an
            entry of `names` or `allow_unmatched` finds nothing.
    """
    labels = [name for name, _ in theirs]
    pairs = {}
    for path, name in names.items():
        if path not in paths:
            raise ValueError(
                f"`names` holds {path!r}, which is no path of a variable. "
                f"They are {_some(paths)}."
            )
        found = [j for j, pair in enumerate(theirs) if name in pair]
        if len(found) != 1:
            raise ValueError(
                f"`names` gives {path!r} the name {name!r}, which "
                f"{len(found)} variables of the file have. They are "
                f"{_some(labels)}; in the file {_some(k for _, k in theirs)}."
            )
        pairs[paths.index(path)] = found[0]
    rest = [i for i in range(len(paths)) if i not in pairs]
    free = [j for j in range(len(theirs)) if j not in pairs.values()]
    forward = {i: _best(paths[i], {j: labels[j] for j in free}) for i in rest}
    back = {j: _best(labels[j], {i: paths[i] for i in rest}) for j in free}
    for i, found in forward.items():
        if len(found) == 1 and back[found[0]] == [i]:
            pairs[i] = found[0]
    _refuse_unmatched(paths, labels, pairs, forward, back, allow_unmatched)
    return dict(sorted(pairs.items()))


def _best(name: str, others: Mapping[int, str]) -> list[int]:
    """Returns which of `others` are closest: one, a tie, or none."""
    closeness = {k: _closeness(name, other) for k, other in others.items()}
    best = max((c for c in closeness.values() if c), default=None)
    return [k for k, c in closeness.items() if c and c == best]


def _closeness(one: str, other: str) -> tuple[int, int] | None:
    """Returns the components in common from the end, then those not.

    The second decides between `block/dense/kernel` and `dense/kernel`
    for a `model/dense/kernel`. `None` where too few are in common.
    """
    a, b = one.split("/")[::-1], other.split("/")[::-1]
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    if same < min(2, len(a), len(b)):
        return None
    return same, 2 * same - len(a) - len(b)


def _refuse_unmatched(paths, labels, pairs, forward, back, allowed):
    ours = [
        (paths[i], "here", "in the file", [labels[j] for j in found])
        for i, found in forward.items()
        if i not in pairs
    ]
    left = [
        (labels[j], "in the file", "here", [paths[i] for i in found])
        for j, found in back.items()
        if j not in pairs.values()
    ]
    alone = [name for name, *_ in ours + left]
    for pattern in allowed:
        if not any(re.search(pattern, name) for name in alone):
            raise ValueError(
                f"`allow_unmatched` holds {pattern!r}, which is found in no "
                f"variable without a partner. Those are: {_some(alone)}."
            )
    for name, side, other, found in ours + left:
        if any(re.search(pattern, name) for pattern in allowed):
            continue
        why = f"may be any of {_some(found)}" if found else "has no partner"
        raise ValueError(
            f"The variable {name!r} {side} {why} {other}. Name it in "
            "`names={path: name in the file}`, or let it stay without one by "
            f"`allow_unmatched=[{name!r}]`. Without a partner are here: "
            f"{_some(name for name, *_ in ours)}; in the file: "
            f"{_some(name for name, *_ in left)}."
        )


def _some(names) -> str:
    names = list(names)
    if not names:
        return "none"
    return ", ".join(map(repr, names[:8])) + (", ..." if names[8:] else "")
