"""Reads a prepared folder whole and names what is wrong with it."""

import numpy as np

from bert_pretrain import files
from bert_pretrain.data import records, shards
from bert_pretrain.data.manifest import Dataset, Manifest, ShardInfo
from bert_pretrain.tokenizer import Vocabulary, identity


def verify(directory: str) -> list[str]:
    """Checks every byte of a prepared folder against its manifest.

    Args:
        directory: The folder, local or remote.

    Returns:
        What is wrong, a line each with file and byte offset; empty if the
        folder is sound.

    Raises:
        FileNotFoundError, ValueError: The manifest cannot be read.
    """
    manifest = Manifest.load(directory)
    faults = []

    path = files.join(directory, manifest.vocab_file)
    try:
        vocabulary = Vocabulary.load(path)
        special_ids = vocabulary.special_ids()
        info = manifest.tokenizer
        if (
            vocabulary.sha256 != info.vocab_sha256
            or len(vocabulary) != info.vocab_size
            or identity(vocabulary, info.lower_case) != info.identity
        ):
            faults.append(f"{path}: not the vocabulary the manifest names")
    except (OSError, ValueError) as error:
        faults.append(str(error))
        special_ids = None

    path = files.join(directory, manifest.token_counts.file)
    try:
        found = files.sha256(files.read_bytes(path))
        if found != manifest.token_counts.sha256:
            faults.append(f"{path}: sha256 is not the manifest's")
    except OSError as error:
        faults.append(str(error))

    for dataset in manifest.datasets.values():
        for name, split in dataset.splits.items():
            if len({shard.examples for shard in split.shards}) > 1:
                faults.append(
                    f"{directory}: shards of {name}, length "
                    f"{dataset.seq_length}, are not equally long"
                )
            parts = []
            for shard in split.shards:
                path = files.join(directory, shard.file)
                try:
                    parts.append(_check_shard(path, shard, dataset))
                    _check_examples(
                        path,
                        parts[-1],
                        manifest.tokenizer.vocab_size,
                        special_ids,
                        dataset.record_bytes,
                    )
                except (OSError, ValueError) as error:
                    faults.append(str(error))
            if len(parts) == len(split.shards):
                described = shards.describe_split(
                    records.concatenate(parts),
                    split.dropped_for_even_lanes,
                    split.truncated,
                    split.shards,
                )
                if described != split:
                    faults.append(
                        f"{directory}: the manifest's counts of {name}, "
                        f"length {dataset.seq_length}, are {split}, the "
                        f"shards' {described}"
                    )
    return faults


def _check_shard(
    path: str, shard: ShardInfo, dataset: Dataset
) -> records.Records:
    """Size, framing, checksums of records and of the file."""
    content = files.read_bytes(path)
    found = records.parse_shard(
        path, content, dataset.seq_length, dataset.id_dtype, check_crc=True
    )
    if len(content) != shard.bytes or len(found.ids) != shard.examples:
        raise ValueError(
            f"{path}: ends at byte {len(content)} after {len(found.ids)} "
            f"records; the manifest has {shard.bytes} bytes, "
            f"{shard.examples} records"
        )
    if files.sha256(content) != shard.sha256:
        raise ValueError(f"{path}: sha256 is not the manifest's")
    return found


def _check_examples(
    path: str,
    found: records.Records,
    vocab_size: int,
    special_ids: dict[str, int] | None,
    record_bytes: int,
) -> None:
    """What the examples say: ids, lengths, labels."""
    ids, lengths = found.ids, found.segment_lengths.astype(np.int64)
    ends = lengths.cumsum(axis=1)
    seq_length = ids.shape[1]
    faults = {
        "an id outside the vocabulary": (ids < 0) | (ids >= vocab_size),
        "segments longer than the example": ends[:, 1] > seq_length,
        "an empty segment": (lengths < (3, 2)).any(axis=1),
        "a label that is neither 0 nor 1": found.labels > 1,
    }
    if special_ids:
        rows = np.arange(len(ids))
        last = np.clip(ends - 1, 0, seq_length - 1)
        padding = np.arange(seq_length) >= ends[:, 1:]
        sep, pad = special_ids["[SEP]"], special_ids["[PAD]"]
        faults |= {
            "no [CLS] at its start": ids[:, 0] != special_ids["[CLS]"],
            "no [SEP] after segment 0": ids[rows, last[:, 0]] != sep,
            "no [SEP] after segment 1": ids[rows, last[:, 1]] != sep,
            "no [PAD] after its end": (ids != pad) & padding,
        }
    for fault, where in faults.items():
        bad = where.reshape(len(ids), -1).any(axis=1)
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"{path}: record {row} at byte {row * record_bytes} has {fault}"
            )
