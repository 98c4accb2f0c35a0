"""The table of a run, and what it says of the spec's targets."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.contenders import by_name

Row = dict[str, Any]

# Spec, "Speed".
MOST_TIMES_BOUND = 1.15
LEAST_SPEEDUP = 2.0

_HEADER = (
    f"{'mode':<8}{'optimizer':<16}{'median s':>9}{'fastest':>9}{'x bound':>9}"
    f"{'above MB':>9}{'first s':>9}{'traces':>7}{'again':>6}  state"
)


def header(model: str, dtype: str, variables: int, parameters: int) -> str:
    """Returns the lines above the rows of one group."""
    return (
        f"\n{model}, {dtype}: {variables} variables, "
        f"{parameters / 1e6:.1f}M parameters\n{_HEADER}"
    )


def line(row: Row) -> str:
    """Returns one row of the table."""
    start = f"{row['mode']:<8}{row['optimizer']:<16}"
    if "error" in row:
        return f"{start}  {row['error']}"
    counts = [
        "-" if row[key] is None else row[key] for key in ("traces", "retraces")
    ]
    return (
        f"{start}{row['seconds']:>9.4f}{row['fastest']:>9.4f}"
        f"{row['times_bound']:>9.2f}{row['bytes_above'] / 1e6:>9.0f}"
        f"{row['first_step_seconds']:>9.1f}{counts[0]:>7}{counts[1]:>6}"
        f"  {row['state']}"
    )


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Judges every group of rows by the targets.

    Times are compared as multiples of the bound around each, since the
    machine may be shared. Only peers that train can be beaten.

    Args:
        rows: All rows of a run.

    Returns:
        One entry per target: `model`, `dtype`, `target`, `passed` (None
        where a row for it is missing) and `found`, a sentence.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["dtype"]), []).append(row)
    return [
        {"model": model, "dtype": dtype, **verdict}
        for (model, dtype), group in groups.items()
        for verdict in _verdicts(group)
    ]


def summary_lines(verdicts: Sequence[dict[str, Any]]) -> str:
    """Returns the summary as printed."""
    words = {True: "PASS", False: "MISS", None: "?"}
    lines = ["\ntargets"]
    for v in verdicts:
        lines.append(
            f"{words[v['passed']]:<5}{v['model']:<11}{v['dtype']:<9} "
            f"{v['target']}: {v['found']}"
        )
    return "\n".join(lines)


def _verdicts(group):
    good = [row for row in group if row.get("state") == "trains"]
    ours = [row for row in good if by_name(row["optimizer"]).ours]
    peers = [row for row in good if not by_name(row["optimizer"]).ours]
    defaults = [
        row
        for row in peers
        if by_name(row["optimizer"]).default_mode == row["mode"]
    ]
    slowest = max(ours, key=_ratio, default=None)
    yield _verdict(
        f"ours <= {MOST_TIMES_BOUND} x bound in every mode",
        slowest and _ratio(slowest) <= MOST_TIMES_BOUND,
        slowest and f"at most {_ratio(slowest):.2f} ({_title(slowest)})",
    )
    # A peer's default path is a graph, fit's own; so is ours.
    graph = [row for row in ours if row["mode"] == "graph"]
    mine = max(graph, key=_ratio, default=None)
    for peer in defaults:
        speedup = mine and _ratio(peer) / _ratio(mine)
        yield _verdict(
            f"ours >= {LEAST_SPEEDUP:g} x faster than {peer['optimizer']}, "
            "both in graph mode",
            speedup and speedup >= LEAST_SPEEDUP,
            speedup and f"{speedup:.2f} x",
        )
    peer = min(peers, key=_ratio, default=None)
    speedup = peer and slowest and _ratio(peer) / _ratio(slowest)
    yield _verdict(
        "ours in every mode faster than the fastest peer in any",
        speedup and speedup > 1.0,
        speedup and f"{speedup:.2f} x ({_title(slowest)} to {_title(peer)})",
    )
    retraced = [row for row in ours if row["retraces"]]
    yield _verdict(
        "ours never retraces after the first step",
        not retraced if ours else None,
        ", ".join(map(_title, retraced)) or "none",
    )


def _verdict(target, passed, found):
    return {
        "target": target,
        "passed": None if passed is None else bool(passed),
        "found": found or "not measured",
    }


def _ratio(row):
    return row["times_bound"]


def _title(row):
    return f"{row['optimizer']}, {row['mode']}"
