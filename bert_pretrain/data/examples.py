"""A chunk of documents to the examples of every length: the worker's part."""

import collections
import dataclasses
import random

import numpy as np

from bert_pretrain.data import pairs, records, sentences
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.partition import TRAIN, Chunk
from bert_pretrain.tokenizer import Tokenizer


@dataclasses.dataclass
class SourceCounts:
    """What a chunk holds of one source.

    Of the `problems`, `sentences_without_partner` counts the sentences that
    at least one length or pass has no pair for, each once.
    """

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    problems: collections.Counter = dataclasses.field(
        default_factory=collections.Counter
    )


@dataclasses.dataclass(frozen=True)
class ChunkExamples:
    """The examples of a chunk, by sequence length, and its counts.

    `token_counts` is int64 [vocab_size] for the training split, else None.
    """

    split: str
    examples: dict[int, records.Records]
    truncated: dict[int, int]
    sources: dict[int, SourceCounts]
    token_counts: np.ndarray | None


def make_examples(
    chunk: Chunk, tokenizer: Tokenizer, config: PrepareConfig
) -> ChunkExamples:
    """Splits, tokenizes and pairs the documents of a chunk.

    Args:
        chunk: Documents of one split.
        tokenizer: The tokenizer.
        config: The lengths, probabilities and the seed.

    Returns:
        Examples and counts; a function of the arguments alone.
    """
    sources = collections.defaultdict(SourceCounts)
    texts, text_counts = [], []
    for document in chunk.documents:
        problems = sources[document.source].problems
        found = sentences.split(document, problems)
        texts.extend(found)
        text_counts.append(len(found))
    tokens, sentence_tokens = tokenizer.encode(texts)

    # A sentence of accents alone has characters, but no tokens.
    document_of = np.repeat(np.arange(len(text_counts)), text_counts)
    document_of = document_of[sentence_tokens > 0]
    size = len(text_counts)
    document_tokens = np.bincount(
        document_of, sentence_tokens[sentence_tokens > 0], size
    ).astype(np.int64)
    document_sentences = np.bincount(document_of, minlength=size)
    for document, before, count, token_count in zip(
        chunk.documents,
        text_counts,
        document_sentences.tolist(),
        document_tokens.tolist(),
        strict=True,
    ):
        counts = sources[document.source]
        counts.problems["empty_sentences"] += before - count
        counts.problems["empty_documents"] += count == 0
        counts.problems["one_sentence_documents"] += count == 1
        counts.documents += count > 0
        counts.sentences += count
        counts.tokens += token_count
    document_sentences = document_sentences[document_sentences > 0].tolist()
    sentence_tokens = sentence_tokens[sentence_tokens > 0].tolist()

    special_ids = tokenizer.vocabulary.special_ids()
    examples, truncated, without_partner = {}, {}, set()
    for seq_length in config.seq_lengths:
        parts = []
        truncated[seq_length] = 0
        for duplicate in range(config.dupe_factor):
            rng = random.Random(
                f"{config.random_seed}/{chunk.split}/{chunk.index}/"
                f"{seq_length}/{duplicate}"
            )
            made = pairs.make_pairs(
                document_sentences,
                sentence_tokens,
                seq_length,
                config.short_seq_prob,
                rng,
            )
            truncated[seq_length] += made.truncated
            without_partner.update(made.without_partner)
            ids, lengths = pairs.assemble(
                tokens,
                made.spans,
                seq_length,
                special_ids,
                records.id_dtype_for(len(tokenizer.vocabulary)),
            )
            parts.append(records.Records(ids, lengths, made.labels))
        examples[seq_length] = records.concatenate(parts)
    for sentence in without_partner:
        source = chunk.documents[document_of[sentence]].source
        sources[source].problems["sentences_without_partner"] += 1

    token_counts = None
    if chunk.split == TRAIN:
        token_counts = np.bincount(
            tokens, minlength=len(tokenizer.vocabulary)
        ).astype(np.int64)
    return ChunkExamples(
        chunk.split,
        examples,
        truncated,
        dict(sources),
        token_counts,
    )
