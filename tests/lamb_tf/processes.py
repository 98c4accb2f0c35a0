"""Real processes for the strategies that need some."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT = 240  # Seconds; it takes some twenty.


def free_ports(count: int) -> list[int]:
    # All open at once, so that they differ.
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run_together(
    module: str, arguments: list[list[str]], env: list[dict[str, str]]
) -> None:
    """Runs `python -m module` once for each list, all at the same time.

    Raises:
        AssertionError: If one fails, or has not ended in time; with the
            end of what each of them printed.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *each],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for each, extra in zip(arguments, env, strict=True)
    ]
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=TIMEOUT)[0])
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            outputs.append("TIMED OUT\n" + process.communicate()[0])
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), "\n=====\n".join(
        f"exit code {code}\n{output[-4000:]}"
        for code, output in zip(codes, outputs, strict=True)
    )
