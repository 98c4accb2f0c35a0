"""Times contenders of one framework, each in a process of its own.

    python -m benchmarks.worker MODULE ...

It imports the modules once, then reads jobs from standard input, one
JSON object a line, and answers each with one. A job runs in a fork, so
that it starts from clean memory, gives back what it took and can fail
alone; only the import, ten seconds for TensorFlow, is shared.
"""

import contextlib
import importlib
import json
import os
import signal
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np

from benchmarks import contenders, machine, prepare, shapes

# Bytes that move per parameter in ten passes: read w, g, m, v; write m, v;
# read w, m, v; write w. Exact bfloat16 training keeps a float32 master,
# which is read in the place of w, and rounds it to w at the end.
BOUND_BYTES = {
    "float32": 10 * 4,
    "bfloat16": (2 + 3 * 4) + 2 * 4 + 3 * 4 + (4 + 2),
}
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
LEAST_REPEATS = 3
SAMPLE = 64


def measure(
    contender: str,
    mode: str,
    model: str,
    dtype: str,
    repeats: int,
    seconds: float,
) -> dict[str, Any]:
    """Returns the times and the memory of one contender.

    Args:
        contender: Name of a contender.
        mode: One of its modes.
        model: Name of a parameter list.
        dtype: `float32` or `bfloat16`, of weights and gradients.
        repeats: Steps to time, at most.
        seconds: No more steps are timed after these, beyond the least.
    """
    parameter_list = shapes.MODELS[model]()
    parameters = shapes.parameters(parameter_list)
    moved = BOUND_BYTES[dtype] * parameters
    copy = machine.Copy()
    empty = machine.resident_bytes()
    prepared = contenders.by_name(contender).prepare(
        parameter_list, dtype, mode
    )
    before = _sample(prepared.weights())
    first = _seconds(prepared.step)
    traces = prepared.traces() if prepared.traces else None
    prepared.step()
    times, bounds, bandwidths = [], [], [copy.bandwidth()]
    while len(times) < LEAST_REPEATS or (
        len(times) < repeats and sum(times) < seconds
    ):
        times.append(_seconds(prepared.step))
        bandwidths.append(copy.bandwidth())
        bounds.append(moved * 2 / sum(bandwidths[-2:]))
    after = _sample(prepared.weights())
    slot_bytes = sum(map(prepare.nbytes, prepared.slots()))
    given = 2 * parameters * ITEM_BYTES[dtype]
    machine.resident_bytes()
    machine.reset_peak()
    prepared.step()
    peak = machine.peak_bytes()
    return {
        "seconds": statistics.median(times),
        "fastest": min(times),
        "times_bound": statistics.median(
            took / bound for took, bound in zip(times, bounds, strict=True)
        ),
        "bound_seconds": statistics.median(bounds),
        "copy_bytes_per_second": statistics.median(bandwidths),
        "repeats": len(times),
        "first_step_seconds": first,
        "traces": traces,
        "retraces": prepared.traces() - traces if prepared.traces else None,
        "slot_bytes": slot_bytes,
        # TensorFlow keeps what a step has freed for the next: so the peak is
        # counted from the start, with the programs in it.
        "bytes_above": peak - empty - given - slot_bytes,
        "state": _state(before, after),
    }


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _sample(weights):
    return [
        np.asarray(weight, np.float32).reshape(-1)[:SAMPLE].copy()
        for weight in weights
    ]


def _state(before, after):
    if not all(np.isfinite(a).all() for a in after):
        return "NaN"
    if all((a == b).all() for a, b in zip(after, before, strict=True)):
        return "never moves"
    return "trains"


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a job that runs in a fork of this process."""
    limit = job.pop("limit")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        # The kernel ends a job that hangs in native code, too.
        signal.alarm(limit)
        try:
            result = measure(**job)
        except ImportError as error:
            install = contenders.by_name(job["contender"]).install
            result = {
                "error": f"not installed: pip install {install} ({error})"
            }
        except BaseException as error:  # Whatever it is goes in the row.
            text = str(error).strip().splitlines() or [""]
            result = {"error": f"{type(error).__name__}: {text[0]}"[:200]}
        with os.fdopen(writer, "w") as file:
            json.dump(result, file)
        # No destructor of a framework may hang here.
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if text:
        return json.loads(text)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return {"error": f"not done after {limit} s"}
    return {"error": f"ended with status {status}"}


def main() -> None:
    """Imports the modules named, then answers jobs until the input ends."""
    warnings.filterwarnings("ignore")
    # Frameworks print; the answers keep their pipe for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in sys.argv[1:]:
        # A job that needs it says so in its own row.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
