"""One optimizer step, ours beside its peers.

    pip install '.[bench]'
    python -m benchmarks.optimizer [--json FILE] [--only ours] ...

The bound is ten passes of 4 bytes per parameter (read w, g, m, v; write
m, v; read w, m, v; write w) at the copy bandwidth, measured before and
after every step, since the machine may be shared; with bfloat16 weights
it is 42 bytes (`worker.BOUND_BYTES`). One contender runs at a time, each
in a process of its own. The table gives

    median s, fastest   seconds of a step
    x bound             the median of a step's seconds by the bound
                        around it
    above MB            the peak of memory in a step, above weights,
                        gradients and slots: programs, temporaries and
                        what the framework keeps for its next ones
    first s             the first step: slots, trace, compilation
    traces, again       functions traced in the first step; after it
    state               whether the weights move, and are numbers

and the summary holds them against the targets of the spec.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import machine, report, shapes
from benchmarks.contenders import CONTENDERS, DEFAULT_MODES, MODES, Contender
from benchmarks.worker import BOUND_BYTES

# Whole-step XLA compiles for minutes in all: bfloat16 once is enough.
DEFAULT_DTYPES = {
    "bert_base": ["float32", "bfloat16"],
    "bert_large": ["float32"],
    "resnet50": ["float32"],
}
# A contender that needs longer than this has lost.
LIMIT_SECONDS = 300


def run(options: argparse.Namespace) -> list[report.Row]:
    """Times what was asked for, printing each row as it comes."""
    rows = []
    with Workers() as workers:
        for model in options.models:
            parameter_list = shapes.MODELS[model]()
            size = shapes.parameters(parameter_list)
            for dtype in options.dtypes or DEFAULT_DTYPES[model]:
                print(report.header(model, dtype, len(parameter_list), size))
                for contender, mode in chosen(options):
                    row = {
                        "model": model,
                        "dtype": dtype,
                        "mode": mode,
                        "optimizer": contender.name,
                    }
                    row |= workers.ask(
                        contender,
                        mode=mode,
                        model=model,
                        dtype=dtype,
                        repeats=options.repeats,
                        seconds=options.seconds,
                        limit=LIMIT_SECONDS,
                    )
                    rows.append(row)
                    print(report.line(row), flush=True)
    return rows


def chosen(
    options: argparse.Namespace,
) -> Iterator[tuple[Contender, str]]:
    """Yields the contenders and modes asked for, mode by mode."""
    for mode in options.modes:
        for contender in CONTENDERS:
            if (
                mode in contender.modes
                and options.only.lower() in contender.name.lower()
            ):
                yield contender, mode


class Workers:
    """One worker process per framework, started when first needed."""

    def __init__(self):
        self._processes = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exception: Any) -> None:
        for process in self._processes.values():
            process.stdin.close()
            process.wait()

    def ask(self, contender: Contender, **job: Any) -> dict[str, Any]:
        """Returns the result of one job, or `{"error": ...}`."""
        framework = contender.framework
        if framework not in self._processes:
            self._processes[framework] = _start(framework)
        process = self._processes[framework]
        try:
            job["contender"] = contender.name
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the {framework} worker has ended"}
        answer = process.stdout.readline()
        if not answer:
            return {"error": f"the {framework} worker has ended"}
        return json.loads(answer)


def _start(framework):
    modules = dict.fromkeys(
        module
        for contender in CONTENDERS
        if contender.framework == framework
        for module in contender.imports
    )
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Frameworks greet; what matters comes back in the row.
        stderr=subprocess.DEVNULL,
        text=True,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )

    def subset(known):
        def split(text):
            names = text.split(",")
            unknown = set(names) - set(known)
            if unknown:
                raise argparse.ArgumentTypeError(
                    f"{', '.join(sorted(unknown))}: choose from "
                    f"{','.join(known)}"
                )
            return names

        return split

    for name, known, default in (
        ("models", shapes.MODELS, shapes.MODELS),
        ("dtypes", BOUND_BYTES, ()),
        ("modes", MODES, DEFAULT_MODES),
    ):
        parser.add_argument(
            f"--{name}",
            type=subset(known),
            default=list(default),
            metavar="A,B",
            help=f"of {','.join(known)}; default "
            + (",".join(default) or "bfloat16 for bert_base alone"),
        )
    parser.add_argument("--only", default="", help="part of optimizers' names")
    parser.add_argument("--repeats", type=int, default=10, help="at most")
    parser.add_argument(
        "--seconds",
        type=float,
        default=4.0,
        help="no more repeats after these, beyond three",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything here")
    return parser.parse_args(arguments)


def main() -> None:
    """Prints the table and the summary, and writes them where asked."""
    options = parse()
    about = machine.describe()
    print(", ".join(f"{k} {v}" for k, v in about.items() if k != "versions"))
    print(", ".join(f"{k} {v}" for k, v in about["versions"].items() if v))
    rows = run(options)
    verdicts = report.summary(rows)
    print(report.summary_lines(verdicts))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {"about": about, "rows": rows, "targets": verdicts},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
