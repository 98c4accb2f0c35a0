"""Examples to the shards of a length: shuffled, dealt, written."""

import io

import numpy as np

from bert_pretrain import files
from bert_pretrain.data import folder, manifest, records
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.partition import HELDOUT, TRAIN


def write_length(
    directory: str,
    config: PrepareConfig,
    seq_length: int,
    parts: dict[tuple[str, int], list[records.Records]],
    truncated: dict[tuple[str, int], int],
) -> manifest.Dataset:
    """Writes the shards of one length.

    Args:
        directory: The folder to write into.
        config: The flags.
        seq_length: The length.
        parts: The examples by split and length; those of this length are
            taken out.
        truncated: How many pairs were cut, by split and length.

    Returns:
        The manifest's entry.

    Raises:
        ValueError: There are fewer examples than shards.
        OSError: The folder is not writable, or the disk is full.
    """
    splits = {}
    for split, shard_count in ((TRAIN, config.num_shards), (HELDOUT, 1)):
        joined = records.concatenate(parts[split, seq_length])
        splits[split] = _write_split(
            directory,
            config,
            seq_length,
            split,
            shard_count,
            joined,
            truncated[split, seq_length],
        )
        parts[split, seq_length].clear()
    id_dtype = joined.ids.dtype.name
    return manifest.Dataset(
        seq_length=seq_length,
        id_dtype=id_dtype,
        record_bytes=records.record_bytes(seq_length, id_dtype),
        splits=splits,
    )


def _write_split(
    directory, config, seq_length, split, shard_count, joined, truncated
) -> manifest.Split:
    """Shuffles examples and deals them to lanes of one size."""
    total = len(joined.labels)
    each = total // shard_count
    if each == 0:
        remedy = (
            # A power of two divides the usual batches.
            f"Use --num_shards={1 << (total.bit_length() - 1)}, or more text."
            if total
            else "Give more documents of two sentences or more."
        )
        raise ValueError(
            f"{total} {split} example(s) of length {seq_length} do not fill "
            f"{shard_count} shard(s). {remedy}"
        )
    # The old generator: NumPy keeps its stream the same in every version.
    order = np.random.RandomState(
        [config.random_seed % 2**32, seq_length, split == TRAIN]
    ).permutation(total)[: each * shard_count]
    kept = records.Records(*(array[order] for array in joined))
    shards = tuple(
        records.write_shard(
            files.join(
                directory,
                folder.shard_file(seq_length, split, lane, shard_count),
            ),
            *(array[lane::shard_count] for array in kept),
        )
        for lane in range(shard_count)
    )
    return describe_split(kept, total - len(order), truncated, shards)


def describe_split(
    kept: records.Records,
    dropped: int,
    truncated: int,
    shards: tuple[manifest.ShardInfo, ...],
) -> manifest.Split:
    """The manifest's entry of examples."""
    tokens = int(kept.segment_lengths.sum(dtype=np.int64))
    return manifest.Split(
        examples=len(kept.labels),
        dropped_for_even_lanes=dropped,
        truncated=truncated,
        tokens=tokens,
        padding_share=round(1 - tokens / kept.ids.size, 6),
        random_next_share=round(float(kept.labels.mean()), 6),
        shards=shards,
    )


def write_token_counts(
    directory: str, token_counts: np.ndarray
) -> manifest.TokenCounts:
    """Writes the counts, int64 [vocab_size]; returns the manifest's entry."""
    buffer = io.BytesIO()
    np.save(buffer, token_counts, allow_pickle=False)
    content = buffer.getvalue()
    files.write_bytes(files.join(directory, folder.TOKEN_COUNTS_FILE), content)
    return manifest.TokenCounts(folder.TOKEN_COUNTS_FILE, files.sha256(content))
