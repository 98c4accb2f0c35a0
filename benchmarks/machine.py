"""What the machine gives: copy bandwidth, memory in use, its name."""

import concurrent.futures
import ctypes
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import time
from typing import Any

import numpy as np

_STATUS = pathlib.Path("/proc/self/status")


class Copy:
    """Measures the copy bandwidth of all cores together.

    One `np.copyto` a core, which is memcpy without the interpreter's
    lock, over 2 x 256 MiB: far more than any cache of a CPU of today.
    It belongs to no framework, so every contender has the same bound.
    On 2 cores of an AMD EPYC (32 MiB L3) it gave 74 to 76 GB/s, one
    thread 40, and XLA's `source + 1.0`, which does use both cores (1.9
    CPU seconds a second), 63 to 70: this is the stricter bound.
    """

    SIZE = 2**28
    ROUNDS = 3

    def __init__(self):
        cores = len(os.sched_getaffinity(0))
        source = np.ones(self.SIZE // 4, np.float32)
        target = np.zeros_like(source)
        self._parts = list(
            zip(
                np.array_split(target, cores),
                np.array_split(source, cores),
                strict=True,
            )
        )
        self._pool = concurrent.futures.ThreadPoolExecutor(cores)
        self.bandwidth()

    def bandwidth(self) -> float:
        """Returns bytes read and written per second, measured now."""
        start = time.perf_counter()
        for _ in range(self.ROUNDS):
            list(self._pool.map(lambda part: np.copyto(*part), self._parts))
        return 2 * self.ROUNDS * self.SIZE / (time.perf_counter() - start)


def resident_bytes() -> int:
    """Returns the resident memory; freed memory is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def reset_peak() -> None:
    """Starts the peak of the resident memory anew (Linux >= 4.0)."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Returns the peak of the resident memory since `reset_peak`."""
    return _status("VmHWM")


def _status(field):
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def describe() -> dict[str, Any]:
    """Returns what a reader needs to judge numbers from this machine."""
    packages = ("tensorflow", "keras", "tf_keras", "tf-models-official")
    packages += ("jax", "optax", "torch", "timm", "numpy")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit():
    here = pathlib.Path(__file__).parent
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
