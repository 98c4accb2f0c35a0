"""The local driver: sources to a prepared folder, with worker processes.

The main process reads, splits into chunks and writes; workers make examples
(`examples.make_examples`). Results are taken in the order of the chunks, so
the bytes are the same for any number of workers.
"""

import collections
import io
import os
import re

import numpy as np
from absl import logging

import bert_pretrain
from bert_pretrain import files
from bert_pretrain import tokenizer as tokenizer_lib
from bert_pretrain.data import (
    corpus,
    examples,
    manifest,
    partition,
    workers,
)
from bert_pretrain.data import records as records_lib
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.partition import HELDOUT, TRAIN

VOCAB_FILE = "vocab.txt"
TOKEN_COUNTS_FILE = "token_counts.npy"
_SHARD = re.compile(
    r"(train|heldout)-\d{5}-of-\d{5}\.tfrecord(\.partial)?", re.ASCII
)


def shard_file(seq_length: int, split: str, index: int, count: int) -> str:
    """The name of a shard, relative to the prepared folder."""
    name = f"{split}-{index:05d}-of-{count:05d}.tfrecord"
    return f"length_{seq_length}/{name}"


def tokenizer_info(
    config: PrepareConfig, vocabulary: tokenizer_lib.Vocabulary
) -> manifest.TokenizerInfo:
    """The tokenizer as the manifest has it."""
    return manifest.TokenizerInfo(
        vocab_sha256=vocabulary.sha256,
        vocab_size=len(vocabulary),
        lower_case=config.do_lower_case,
        identity=tokenizer_lib.identity(vocabulary, config.do_lower_case),
    )


def build(
    config: PrepareConfig,
    vocabulary: tokenizer_lib.Vocabulary,
    specs: list[corpus.SourceSpec],
) -> manifest.Manifest:
    """Makes a prepared folder, or leaves one without a manifest.

    Args:
        config: The flags.
        vocabulary: The vocabulary of `config`.
        specs: The sources of `config`.

    Returns:
        The manifest, which is written last.

    Raises:
        ValueError: The corpus is empty or too small, for one.
        OSError: The folder is not writable, or the disk is full.
    """
    _clear(config.output_dir)
    # First of all, so that an unwritable folder is known before the work.
    vocab_file = files.join(config.output_dir, VOCAB_FILE)
    files.write_bytes(vocab_file, vocabulary.content)
    tallies = [corpus.Tally() for _ in specs]
    documents = (
        document
        for source, (spec, tally) in enumerate(zip(specs, tallies, strict=True))
        for document in corpus.read(spec, source, tally)
    )
    chunks = partition.chunks(
        documents, tallies, config.random_seed, config.heldout_fraction
    )
    parts = {
        (split, length): []
        for length in config.seq_lengths
        for split in (TRAIN, HELDOUT)
    }
    truncated = collections.Counter()
    counts = {
        (split, source): examples.SourceCounts()
        for split in (TRAIN, HELDOUT)
        for source in range(len(specs))
    }
    token_counts = np.zeros(len(vocabulary), np.int64)
    input_bytes = sum(files.size(p) or 0 for s in specs for p in s.paths)
    worker_count = config.worker_count(input_bytes)
    for made in workers.map_chunks(chunks, vocab_file, config, worker_count):
        for length, part in made.examples.items():
            parts[made.split, length].append(part)
            truncated[made.split, length] += made.truncated[length]
        for source, found in made.sources.items():
            total = counts[made.split, source]
            total.documents += found.documents
            total.sentences += found.sentences
            total.tokens += found.tokens
            total.problems.update(found.problems)
        if made.token_counts is not None:
            token_counts += made.token_counts
        logging.log_every_n_seconds(
            logging.INFO,
            "%.1f MB read, %d documents in work",
            10,
            sum(tally.bytes for tally in tallies) / 1e6,
            sum(count.documents for count in counts.values()),
        )
    datasets = {
        length: _write_length(config, length, parts, truncated)
        for length in config.seq_lengths
    }
    result = manifest.Manifest(
        code_version=bert_pretrain.__version__,
        command=config.command(),
        seed=config.random_seed,
        parameters=config.parameters(),
        tokenizer=tokenizer_info(config, vocabulary),
        vocab_file=VOCAB_FILE,
        sources=tuple(
            _source(spec, tally, counts[TRAIN, i], counts[HELDOUT, i])
            for i, (spec, tally) in enumerate(zip(specs, tallies, strict=True))
        ),
        datasets=datasets,
        token_counts=_write_token_counts(config.output_dir, token_counts),
    )
    result.save(config.output_dir)
    return result


def differences(
    found: manifest.Manifest,
    config: PrepareConfig,
    vocabulary: tokenizer_lib.Vocabulary,
    specs: list[corpus.SourceSpec],
) -> list[str]:
    """Why a prepared folder is not the one `build` would make.

    Args:
        found: The manifest in `config.output_dir`.
        config: The flags.
        vocabulary: The vocabulary of `config`.
        specs: The sources of `config`.

    Returns:
        Reasons, each with both values; empty if the folder is complete.
    """
    wanted = config.parameters()
    reasons = [
        f"--{name} was {found.parameters.get(name)}, is {value}"
        for name, value in wanted.items()
        if found.parameters.get(name) != value
    ]
    if found.tokenizer.vocab_sha256 != vocabulary.sha256:
        reasons.append("the vocabulary has other content")
    elif found.tokenizer != tokenizer_info(config, vocabulary) and not reasons:
        reasons.append("it was made by another version of the tokenizer")
    if found.code_version != bert_pretrain.__version__:
        reasons.append(
            f"the code was {found.code_version}, is {bert_pretrain.__version__}"
        )
    before = {source.name: source.content_sha256 for source in found.sources}
    if not reasons:
        reasons += [
            f"{spec.name} has other content"
            for spec in specs
            if before.get(spec.name) != corpus.content_sha256(spec)
        ]
    reasons += [
        f"{shard.file} is missing or not of {shard.bytes:,} bytes"
        for dataset in found.datasets.values()
        for split in dataset.splits.values()
        for shard in split.shards
        if files.size(files.join(config.output_dir, shard.file)) != shard.bytes
    ]
    return reasons


def _clear(directory: str) -> None:
    """Removes an earlier or unfinished preparation, the manifest first."""
    for name in (manifest.FILE_NAME, TOKEN_COUNTS_FILE, VOCAB_FILE):
        if files.size(files.join(directory, name)) is not None:
            files.remove(files.join(directory, name))
    for path in files.expand(files.join(directory, "length_*", "*")):
        # Nothing but what a preparation writes: the folder is the user's.
        if _SHARD.fullmatch(os.path.basename(path)):
            files.remove(path)


# Writing ---------------------------------------------------------------------


def _write_length(config, seq_length, parts, truncated) -> manifest.Dataset:
    splits = {}
    for split, shard_count in ((TRAIN, config.num_shards), (HELDOUT, 1)):
        joined = records_lib.concatenate(parts[split, seq_length])
        splits[split] = _write_split(
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
        record_bytes=records_lib.record_bytes(seq_length, id_dtype),
        splits=splits,
    )


def _write_split(
    config, seq_length, split, shard_count, joined, truncated
) -> manifest.Split:
    """Shuffles examples and deals them to lanes of one size."""
    total = len(joined.labels)
    each = total // shard_count
    if each == 0:
        remedy = (
            f"Use --num_shards={total}, or more text."
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
    kept = records_lib.Records(*(array[order] for array in joined))
    shards = tuple(
        records_lib.write_shard(
            files.join(
                config.output_dir,
                shard_file(seq_length, split, lane, shard_count),
            ),
            *(array[lane::shard_count] for array in kept),
        )
        for lane in range(shard_count)
    )
    return describe_split(kept, total - len(order), truncated, shards)


def describe_split(
    kept: records_lib.Records,
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


def _write_token_counts(directory, token_counts) -> manifest.TokenCounts:
    buffer = io.BytesIO()
    np.save(buffer, token_counts, allow_pickle=False)
    content = buffer.getvalue()
    files.write_bytes(files.join(directory, TOKEN_COUNTS_FILE), content)
    return manifest.TokenCounts(TOKEN_COUNTS_FILE, files.sha256(content))


def _source(spec, tally, train, heldout) -> manifest.Source:
    problems = tally.problems + train.problems + heldout.problems
    return manifest.Source(
        name=spec.name,
        files=tally.files,
        bytes=tally.bytes,
        documents=train.documents + heldout.documents,
        sentences=train.sentences + heldout.sentences,
        tokens=train.tokens + heldout.tokens,
        train_documents=train.documents,
        heldout_documents=heldout.documents,
        problems=dict(sorted(problems.items())),
        content_sha256=tally.content_sha256(),
    )
