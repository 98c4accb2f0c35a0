"""The local driver: sources to a prepared folder, with worker processes.

The main process reads, splits into chunks and writes; workers make examples
(`examples.make_examples`). Results are taken in the order of the chunks, so
the bytes are the same for any number of workers.
"""

import collections

import numpy as np

import bert_pretrain
from bert_pretrain import files
from bert_pretrain import tokenizer as tokenizer_lib
from bert_pretrain.data import (
    corpus,
    examples,
    folder,
    manifest,
    partition,
    shards,
    workers,
)
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.partition import HELDOUT, TRAIN
from bert_pretrain.data.progress import Progress


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
    """Makes a prepared folder, or leaves it as it is.

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
    with folder.made_aside(config.output_dir) as directory:
        return _build(directory, config, vocabulary, specs)


def _build(directory, config, vocabulary, specs) -> manifest.Manifest:
    # First of all, so that an unwritable folder is known before the work.
    vocab_file = files.join(directory, folder.VOCAB_FILE)
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
    progress = Progress(input_bytes, worker_count)
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
        progress.update(
            sum(tally.bytes for tally in tallies),
            sum(count.documents for count in counts.values()),
        )
    datasets = {
        length: shards.write_length(directory, config, length, parts, truncated)
        for length in config.seq_lengths
    }
    result = manifest.Manifest(
        code_version=bert_pretrain.__version__,
        command=config.command(),
        seed=config.random_seed,
        parameters=config.parameters(),
        tokenizer=tokenizer_info(config, vocabulary),
        vocab_file=folder.VOCAB_FILE,
        sources=tuple(
            _source(spec, tally, counts[TRAIN, i], counts[HELDOUT, i])
            for i, (spec, tally) in enumerate(zip(specs, tallies, strict=True))
        ),
        datasets=datasets,
        token_counts=shards.write_token_counts(directory, token_counts),
    )
    result.save(directory)
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
