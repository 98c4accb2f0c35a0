import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from bert_pretrain.reporting.progress import Progress, duration

LINE = {
    "phase": "phase2",
    "step": 30,
    "loss": 6.5,
    "mlm_accuracy": 0.25,
    "nsp_accuracy": 0.75,
    "learning_rate": 1e-3,
}
SHOWN = ("loss 6.500", "MLM acc 25.0%", "NSP acc 75.0%", "lr 1.0e-03")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (185, "3m05s"),
        (3720, "1h02m"),
        (4 * 86400 - 60, "3d23h"),
        (-1, "0s"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_plain_lines_without_a_terminal():
    stream = io.StringIO()
    progress = Progress(100, 20, stream=stream)
    progress.update(LINE, 99.0, 65, last_of_phase=False)
    progress.update(LINE, 99.0, 65, last_of_phase=False)  # Too soon.
    progress.update(LINE, 99.0, 65, last_of_phase=True)
    progress.message("held-out")
    progress.close()
    first, last, message = stream.getvalue().splitlines()
    assert first == last
    assert first.startswith("phase2  step  30/100  ETA 1m05s")
    assert first.endswith("99 seq/s")
    assert all(text in first for text in SHOWN)
    assert message == "held-out"


def _shown_on_a_terminal(lines, columns):
    """Returns what a terminal of that size receives."""
    ours, theirs = pty.openpty()
    size = struct.pack("4H", lines, columns, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    with os.fdopen(theirs, "w") as terminal:
        progress = Progress(100, 20, stream=terminal)
        progress.update(LINE, 99.0, 65, last_of_phase=False)
        progress.message("held-out")
        progress.close()
        terminal.flush()
        text = os.read(ours, 65536).decode()
    os.close(ours)
    return text


def test_plain_lines_on_a_terminal_without_a_size():
    text = _shown_on_a_terminal(0, 0)
    assert text.startswith("phase2  step  30/100  ETA 1m05s")


def test_a_bar_on_a_terminal():
    text = _shown_on_a_terminal(24, 120)
    assert "phase2" in text and "30/100" in text and "\r" in text
    assert all(shown in text for shown in ("ETA 1m05s", *SHOWN))
    assert "held-out" in text
