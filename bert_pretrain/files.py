"""Whole files in and out, local or remote, never half-written.

Local paths go through the standard library, so that worker processes need not
load TensorFlow; `gs://` and other schemes go through `tf.io.gfile`.
"""

import contextlib
import glob
import hashlib
import os

# The suffix of a file that is being written; a killed run leaves such a file,
# never a short one under the final name.
PARTIAL_SUFFIX = ".partial"


def is_remote(path: str) -> bool:
    """Whether `path` names a file system of TensorFlow's, as `gs://`."""
    return "://" in os.fspath(path)


def join(directory: str, *names: str) -> str:
    """Joins path parts; keeps the scheme of a remote directory."""
    return os.path.join(os.fspath(directory), *names)


def _gfile():
    import tensorflow as tf  # Only where a path is remote: it loads slowly.

    return tf.io.gfile


def read_bytes(path: str) -> bytes:
    """Reads a whole file.

    Args:
        path: A local path or a URL that `tf.io.gfile` knows.

    Returns:
        Its bytes.

    Raises:
        FileNotFoundError: There is no such file; the message names it.
        OSError: It cannot be read.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            return file.read()
    gfile = _gfile()
    if not gfile.exists(path):
        raise FileNotFoundError(f"{path}: no such file")
    with gfile.GFile(path, "rb") as file:
        return file.read()


def open_read(path: str):
    """Opens a file for reading bytes, line by line or whole."""
    return _gfile().GFile(path, "rb") if is_remote(path) else open(path, "rb")


def expand(pattern: str) -> list[str]:
    """The files a pattern names, sorted, so that their order is the same.

    Args:
        pattern: A path, a glob (`**` crosses folders), or a folder, which
            stands for all its files but hidden ones, at any depth.

    Returns:
        Paths of files; empty when nothing matches.
    """
    if is_remote(pattern):
        gfile = _gfile()
        if gfile.isdir(pattern):
            pattern = join(pattern, "*")
        return sorted(p for p in gfile.glob(pattern) if not gfile.isdir(p))
    if os.path.isdir(pattern):
        pattern = join(glob.escape(pattern), "**", "*")
    found = [pattern] if os.path.isfile(pattern) else []
    found = found or glob.glob(pattern, recursive=True)
    return sorted(path for path in found if os.path.isfile(path))


def size(path: str) -> int | None:
    """The size of a file in bytes, None where there is none."""
    if is_remote(path):
        gfile = _gfile()
        return gfile.stat(path).length if gfile.exists(path) else None
    return os.path.getsize(path) if os.path.isfile(path) else None


def remove(path: str) -> None:
    """Deletes a file."""
    _gfile().remove(path) if is_remote(path) else os.unlink(path)


def write_bytes(path: str, content) -> None:
    """Writes a file under a temporary name, then renames it.

    Args:
        path: A local path or a URL that `tf.io.gfile` knows; its directory
            is made when missing.
        content: Bytes, or anything with the buffer protocol.

    Raises:
        OSError: The disk is full or the place not writable. Nothing is left
            under either name, and the message says what was to be written.
    """
    partial = path + PARTIAL_SUFFIX
    if is_remote(path):
        gfile = _gfile()
        gfile.makedirs(os.path.dirname(path))
        with gfile.GFile(partial, "wb") as file:
            file.write(bytes(content))
        gfile.rename(partial, path, overwrite=True)
        return
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            # A rename may reach the disk before the data does; after a power
            # cut the file would then be complete in name only.
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        size = memoryview(content).nbytes
        raise OSError(
            error.errno,
            f"{path}: cannot write {size:,} bytes ({error.strerror}). Free "
            "space or choose another folder",
        ) from error


def append_bytes(path: str, content: bytes) -> None:
    """Appends to a file, which is made when missing."""
    opener = _gfile().GFile if is_remote(path) else open
    with opener(path, "ab") as file:
        file.write(content)


def sha256(content) -> str:
    """The SHA-256 of a buffer, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
