"""The progress of a run: a bar on a terminal, plain lines otherwise."""

import os
import sys
import time
from typing import Any

import tqdm


class Progress:
    """Shows phase, step, losses, accuracies, LR, sequences/s and ETA."""

    def __init__(
        self,
        total_steps: int,
        first_step: int,
        *,
        stream=None,
        seconds_between_lines: float = 10.0,
    ):
        """Starts the display.

        Args:
          total_steps: Global steps of the whole run.
          first_step: Step the run starts or resumes at.
          stream: Where to write; the process's stdout by default.
          seconds_between_lines: Least time between two plain lines.
        """
        self._stream = stream or sys.stdout
        self._total = total_steps
        self._seconds_between_lines = seconds_between_lines
        self._last_line = -float("inf")
        self._bar = None
        if _is_terminal(self._stream):
            self._bar = tqdm.tqdm(
                total=total_steps,
                initial=first_step,
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}%|{bar}| {n}/{total}"
                "{postfix}",
            )

    def message(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def update(
        self,
        line: dict[str, Any],
        sequences_per_second: float,
        eta_seconds: float,
        last_of_phase: bool,
    ) -> None:
        """Shows the state after a loop.

        Args:
          line: The line of `metrics.jsonl`.
          sequences_per_second: Speed of the loop just done.
          eta_seconds: Time to the end of the run.
          last_of_phase: Plain lines always show the end of a phase.
        """
        # What matters most comes first: a narrow terminal cuts the end.
        text = (
            f"ETA {duration(eta_seconds)}  loss {line['loss']:.3f}  "
            f"MLM acc {line['mlm_accuracy']:.1%}  "
            f"NSP acc {line['nsp_accuracy']:.1%}  "
            f"lr {line['learning_rate']:.1e}  "
            f"{sequences_per_second:.0f} seq/s"
        )
        if self._bar is not None:
            self._bar.set_description_str(line["phase"], refresh=False)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(line["step"] - self._bar.n)
            return
        now = time.monotonic()
        if (
            last_of_phase
            or now - self._last_line >= self._seconds_between_lines
        ):
            self._last_line = now
            step = f"{line['step']:{len(str(self._total))}d}/{self._total}"
            self.message(f"{line['phase']}  step {step}  {text}")

    def close(self) -> None:
        """Leaves the terminal in order."""
        if self._bar is not None:
            self._bar.close()


def _is_terminal(stream) -> bool:
    """Whether a bar can be drawn: some pseudo-terminals have no size."""
    if not stream.isatty():
        return False
    size = os.get_terminal_size(stream.fileno())
    return size.lines > 0 and size.columns > 0


def duration(seconds: float) -> str:
    """Formats a duration: `42s`, `3m05s`, `1h02m`, `3d04h`."""
    total = round(max(seconds, 0.0))
    for unit, size, minor, minor_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if total >= size:
            rest = total % size // minor_size
            return f"{total // size}{unit}{rest:02d}{minor}"
    return f"{total}s"
