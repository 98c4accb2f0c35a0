"""The prepared folder: made aside, then moved into its place.

A preparation is written into `prepare.unfinished`, inside the folder, its
manifest last. Until all of it is there, nothing else in the folder is touched:
bad input or a full disk costs no earlier preparation. Moving takes no space,
and while it goes on the folder has no manifest. So a run killed at any moment
leaves the old preparation, the new one, or a folder that nothing takes for
prepared and that the next run completes.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator

from bert_pretrain import files
from bert_pretrain.data import manifest

UNFINISHED = "prepare.unfinished"
VOCAB_FILE = "vocab.txt"
TOKEN_COUNTS_FILE = "token_counts.npy"
_SHARD = re.compile(r"(train|heldout)-\d{5}-of-\d{5}\.tfrecord", re.ASCII)


def shard_file(seq_length: int, split: str, index: int, count: int) -> str:
    """The name of a shard, relative to the prepared folder."""
    name = f"{split}-{index:05d}-of-{count:05d}.tfrecord"
    return f"length_{seq_length}/{name}"


@contextlib.contextmanager
def made_aside(directory: str) -> Iterator[str]:
    """Makes a preparation beside what a folder holds, then replaces that.

    Args:
        directory: The folder, local or remote.

    Yields:
        The folder to write everything into, the manifest last. After an
        error it is removed, with all that was written.
    """
    _discard(directory)
    try:
        yield files.join(directory, UNFINISHED)
    except BaseException:
        _discard(directory)
        raise
    _move_in(directory)


def finish(directory: str) -> None:
    """Completes a preparation that was killed as it moved into its place."""
    aside = files.join(directory, UNFINISHED)
    if files.size(files.join(aside, manifest.FILE_NAME)) is not None:
        # Of another version: the next preparation discards it.
        with contextlib.suppress(ValueError):
            _move_in(directory)


def check_unclaimed(directory: str) -> None:
    """Checks that a folder without a manifest holds nothing we would replace.

    Args:
        directory: The folder, local or remote.

    Raises:
        ValueError: It does; names a file and the remedy.
    """
    found = _files_named_as_ours(directory)
    if found:
        raise ValueError(
            f"{found[0]} would be replaced, and {directory} has no "
            f"{manifest.FILE_NAME}: the file may be yours. Move it away, use "
            "another --output_dir, or replace it with --overwrite."
        )


def _files_named_as_ours(directory: str) -> list[str]:
    """All that has the name of a preparation's file, but the manifest."""
    paths = [files.join(directory, n) for n in (VOCAB_FILE, TOKEN_COUNTS_FILE)]
    return [path for path in paths if files.size(path) is not None] + [
        path
        for path in files.expand(files.join(directory, "length_*", "*"))
        if _SHARD.fullmatch(os.path.basename(path))
    ]


def _move_in(directory: str) -> None:
    """Moves the finished preparation into its place; may be repeated."""
    aside = files.join(directory, UNFINISHED)
    made = manifest.Manifest.load(aside)
    names = [made.vocab_file, made.token_counts.file] + [
        shard.file
        for dataset in made.datasets.values()
        for split in dataset.splits.values()
        for shard in split.shards
    ]
    # From here on the folder is unprepared, until the last line but one.
    if files.size(files.join(directory, manifest.FILE_NAME)) is not None:
        files.remove(files.join(directory, manifest.FILE_NAME))
    keep = {files.join(directory, name) for name in names}
    for path in _files_named_as_ours(directory):
        if path not in keep:
            files.remove(path)
    for name in [*names, manifest.FILE_NAME]:
        # What is not aside was moved by the run that was killed.
        if files.size(files.join(aside, name)) is not None:
            _move(files.join(aside, name), files.join(directory, name))
    _discard(directory)


def _move(source: str, target: str) -> None:
    if files.is_remote(target):
        import tensorflow as tf  # Only where a path is remote.

        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.rename(source, target, overwrite=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(source, target)


def _discard(directory: str) -> None:
    """Removes what a preparation left aside."""
    aside = files.join(directory, UNFINISHED)
    # First, so that what is left of it is never taken for finished.
    if files.size(files.join(aside, manifest.FILE_NAME)) is not None:
        files.remove(files.join(aside, manifest.FILE_NAME))
    if files.is_remote(aside):
        import tensorflow as tf  # Only where a path is remote.

        if tf.io.gfile.isdir(aside):
            tf.io.gfile.rmtree(aside)
    else:
        shutil.rmtree(aside, ignore_errors=True)
