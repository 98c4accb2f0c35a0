"""How far a preparation is, in plain lines on standard error."""

import sys
import time

_SECONDS = 10


class Progress:
    """Writes a line at the start, then at most one in ten seconds.

    Args:
        total_bytes: The size of the input.
        workers: Processes in use.
    """

    def __init__(self, total_bytes: int, workers: int):
        self._total = f"{total_bytes / 1e6:,.1f} MB"
        self._start = self._last = time.monotonic()
        processes = "1 process" if workers == 1 else f"{workers} processes"
        self._print(f"Preparing {self._total} of text with {processes} ...")

    def update(self, bytes_read: int, documents: int) -> None:
        """Says how much was read, and how many documents are done."""
        now = time.monotonic()
        if now - self._last >= _SECONDS:
            self._last = now
            self._print(
                f"{now - self._start:,.0f} s: {bytes_read / 1e6:,.1f} of "
                f"{self._total} read, {documents:,} documents done"
            )

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
