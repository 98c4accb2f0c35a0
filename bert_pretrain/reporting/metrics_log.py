"""`metrics.jsonl`: a line per loop of training steps."""

import json
from typing import Any

from bert_pretrain import files


class MetricsLog:
    """Appends lines to `metrics.jsonl`; a resumed run continues it.

    Attributes:
      seconds: `seconds` of the last line kept, to count on from.
    """

    def __init__(self, path: str, resume_step: int):
        """Opens the log, without the lines that will be trained again.

        Args:
          path: The file.
          resume_step: Global step the run resumes from. Later lines belong
            to steps after the checkpoint: they are computed anew, the same.
        """
        self._path = path
        kept, dropped = _split(path, resume_step)
        self.seconds = kept[-1]["seconds"] if kept else 0.0
        if dropped:
            text = "".join(json.dumps(line) + "\n" for line in kept)
            files.write_bytes(path, text.encode())

    def write(self, line: dict[str, Any]) -> None:
        """Appends one line."""
        files.append_bytes(self._path, (json.dumps(line) + "\n").encode())


def _split(path: str, last_step: int) -> tuple[list[dict], int]:
    """Returns the lines up to `last_step` and how many others there were."""
    kept, dropped = [], 0
    if files.size(path) is not None:
        # A line counts once its newline is written.
        *complete, rest = files.read_bytes(path).split(b"\n")
        dropped += bool(rest)
        for text in complete:
            try:
                line = json.loads(text)
            except ValueError:  # Not ours, or damaged.
                line = None
            if line is not None and line["step"] <= last_step:
                kept.append(line)
            else:
                dropped += 1
    return kept, dropped
