"""Sentences to pairs to ids: BERT's examples of two segments.

BERT (arXiv:1810.04805), appendix A.2: two spans of text, called sentences,
at most `seq_length` tokens together; B is the next span in half of the
examples, a random span in the others. What the paper leaves open follows
google-research/bert's create_pretraining_data.

Notes:
    Two deviations. The short target is drawn for every pair, there once for
    a document: the share is the same, but does not hang on a few long
    documents. A random B begins at a sentence drawn evenly from all other
    documents, as the paper has it, there from a document drawn evenly: with
    speeches of 50,000 characters beside leads of 500, B would nearly always
    be a lead, and style alone would tell A from B.
"""

import random
from typing import NamedTuple

import numpy as np

FOLLOWS, RANDOM = 0, 1


class Pairs(NamedTuple):
    """Pairs as spans of tokens.

    `spans`: int64 [N, 4], A from, A to, B from, B to. `labels`: uint8 [N].
    `truncated`: pairs that were cut. `without_partner`: indices of the
    sentences left out, as there is neither a next one nor another document.
    """

    spans: np.ndarray
    labels: np.ndarray
    truncated: int
    without_partner: list[int]


def make_pairs(
    document_sentences: list[int],
    sentence_tokens: list[int],
    seq_length: int,
    short_seq_prob: float,
    rng: random.Random,
) -> Pairs:
    """Makes the pairs of a neighbourhood of documents.

    Args:
        document_sentences: Sentences of each document, all >= 1.
        sentence_tokens: Tokens of each sentence, over all documents.
        seq_length: Tokens of an example, with [CLS] and two [SEP].
        short_seq_prob: Share of pairs with a shorter target.
        rng: The only source of chance.

    Returns:
        The pairs, in the order of their A.
    """
    limit = seq_length - 3
    offsets = np.cumsum([0, *sentence_tokens]).tolist()
    bounds = np.cumsum([0, *document_sentences]).tolist()
    end_of = np.repeat(bounds[1:], document_sentences).tolist()
    total = len(sentence_tokens)
    spans, labels, truncated, without_partner = [], [], 0, []
    for first, end in zip(bounds[:-1], bounds[1:], strict=True):
        start = first
        while start < end:
            target = limit
            if rng.random() < short_seq_prob:
                target = 2 + _below(limit - 1, rng)
            # Sentences [start, stop) fill the target; [start, middle) is A.
            stop = start + 1
            while stop < end and offsets[stop] - offsets[start] < target:
                stop += 1
            alone = stop == start + 1
            middle = start + 1
            if not alone:
                middle += _below(stop - start - 1, rng)
            others = total - (end - first)
            if others and (alone or rng.random() < 0.5):
                label = RANDOM
                b_start = _below(others, rng)
                if b_start >= first:
                    b_start += end - first
                b_stop = b_start + 1
                wanted = target - (offsets[middle] - offsets[start])
                while (
                    b_stop < end_of[b_start]
                    and offsets[b_stop] - offsets[b_start] < wanted
                ):
                    b_stop += 1
                # The sentences after A were not used: they come again.
                following = middle
            elif alone:
                without_partner.append(start)
                start = stop
                continue
            else:
                label, b_start, b_stop, following = FOLLOWS, middle, stop, stop
            span = (
                offsets[start],
                offsets[middle],
                offsets[b_start],
                offsets[b_stop],
            )
            cut = truncate(span, limit, rng)
            truncated += cut != span
            spans.append(cut)
            labels.append(label)
            start = following
    return Pairs(
        np.array(spans, np.int64).reshape(-1, 4),
        np.array(labels, np.uint8),
        truncated,
        without_partner,
    )


def truncate(
    span: tuple[int, int, int, int], limit: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Cuts a pair to `limit` tokens, as google-research/bert does.

    Token by token, the longer segment (B, if equal) loses its first or its
    last token by the toss of a coin. All tosses of a segment at once are the
    same: the count at the front is binomial.
    """
    a_from, a_to, b_from, b_to = span
    a, b = a_to - a_from, b_to - b_from
    excess = max(0, a + b - limit)
    # First the longer one comes down to the other, then both by turns.
    from_a = min(excess, max(0, a - b))
    from_b = min(excess, max(0, b - a))
    rest = excess - from_a - from_b
    from_a, from_b = from_a + rest // 2, from_b + (rest + 1) // 2
    a_front = sum(rng.random() < 0.5 for _ in range(from_a))
    b_front = sum(rng.random() < 0.5 for _ in range(from_b))
    return (
        a_from + a_front,
        a_to - (from_a - a_front),
        b_from + b_front,
        b_to - (from_b - b_front),
    )


def assemble(
    tokens: np.ndarray,
    spans: np.ndarray,
    seq_length: int,
    special_ids: dict[str, int],
    id_dtype: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Writes out pairs as `[CLS] A [SEP] B [SEP]` and padding.

    Args:
        tokens: Integers [total], which the spans point into.
        spans: int64 [N, 4], from `make_pairs`.
        seq_length: S.
        special_ids: Ids by token, as "[CLS]".
        id_dtype: NumPy name of the result's dtype.

    Returns:
        ids `id_dtype` [N, S] and segment_lengths uint16 [N, 2].
    """
    ids = np.full((len(spans), seq_length), special_ids["[PAD]"], id_dtype)
    lengths = spans[:, 1::2] - spans[:, 0::2] + np.array([2, 1])
    cls, sep = special_ids["[CLS]"], special_ids["[SEP]"]
    for row, (a_from, a_to, b_from, b_to), (a, b) in zip(
        ids, spans.tolist(), lengths.tolist(), strict=True
    ):
        row[0] = cls
        row[1 : a - 1] = tokens[a_from:a_to]
        row[a - 1] = sep
        row[a : a + b - 1] = tokens[b_from:b_to]
        row[a + b - 1] = sep
    return ids, lengths.astype(np.uint16)


def _below(bound: int, rng: random.Random) -> int:
    """A whole number from 0 to bound - 1.

    Not `randrange`: only `random` is promised to stay the same in later
    versions of Python.
    """
    return int(rng.random() * bound)
