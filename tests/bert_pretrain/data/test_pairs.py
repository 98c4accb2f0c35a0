"""BERT's pairs, against the rules restated token by token."""

import random

import numpy as np
import pytest

from bert_pretrain.data import pairs

SPECIAL = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}


def corpus_of(seed=0, documents=60):
    """Sentence counts and lengths like prose's."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 60, documents).tolist()
    return counts, rng.integers(1, 60, sum(counts)).tolist()


def make(seq_length=128, short=0.1, seed=0, data=None):
    counts, lengths = data or corpus_of()
    made = pairs.make_pairs(
        counts, lengths, seq_length, short, random.Random(seed)
    )
    return counts, lengths, made


def owners(counts, lengths):
    """The document of each token."""
    sentence_document = np.repeat(np.arange(len(counts)), counts)
    return np.repeat(sentence_document, lengths)


@pytest.mark.parametrize("seq_length", [5, 16, 128, 512])
def test_every_pair_fits_and_has_two_segments(seq_length):
    _, _, made = make(seq_length)
    a_from, a_to, b_from, b_to = made.spans.T
    assert (a_to > a_from).all() and (b_to > b_from).all()
    assert (a_to - a_from + b_to - b_from <= seq_length - 3).all()


def test_negatives_come_from_another_document_positives_follow():
    counts, lengths, made = make()
    owner = owners(counts, lengths)
    a_from, a_to, b_from, b_to = made.spans.T
    random_next = made.labels == pairs.RANDOM
    same = owner[a_from] == owner[b_from]
    assert not same[random_next].any()
    assert same[~random_next].all()
    # Nobody's segment crosses the end of a document.
    assert (owner[a_from] == owner[a_to - 1]).all()
    assert (owner[b_from] == owner[b_to - 1]).all()
    # Uncut, B begins where A ends.
    uncut = ~random_next & (b_to - a_from < 125)
    assert uncut.any() and (b_from[uncut] >= a_to[uncut]).all()


def test_without_cutting_b_is_the_next_sentence():
    # 512 tokens hold any document of these, whole.
    data = ([4] * 50, [5, 6, 7, 8] * 50)
    counts, lengths, made = make(512, 0.0, data=data)
    starts = set(np.cumsum([0, *lengths]).tolist())
    assert made.truncated == 0
    for (a_from, a_to, b_from, b_to), label in zip(
        made.spans.tolist(), made.labels, strict=True
    ):
        assert {a_from, a_to, b_from, b_to} <= starts | {sum(lengths)}
        if label == pairs.FOLLOWS:
            assert b_from == a_to


def test_half_of_the_choices_are_random():
    # Long documents, so that hardly any pair is forced to be random.
    rng = np.random.default_rng(0)
    data = ([3000] * 10, rng.integers(3, 30, 30_000).tolist())
    _, _, made = make(data=data)
    share = made.labels.mean()
    # Standard error sqrt(0.25 / n); five of them, and the forced pairs, in
    # which one sentence alone fills a short target (below 2%).
    assert abs(share - 0.5) < 5 * (0.25 / len(made.labels)) ** 0.5 + 0.02


def test_every_sentence_is_used_and_unused_ones_come_back():
    counts, lengths, made = make(10_000, 0.0)
    used = np.zeros(sum(lengths), bool)
    for a_from, a_to, b_from, b_to in made.spans:
        used[a_from:a_to] = True
        used[b_from:b_to] = True
    assert used.all()


def test_short_targets():
    rng = np.random.default_rng(0)
    data = ([3000] * 4, rng.integers(1, 4, 12_000).tolist())
    for short in (0.0, 0.1, 0.9):
        _, _, made = make(128, short, data=data)
        tokens = (made.spans[:, 1::2] - made.spans[:, ::2]).sum(axis=1)
        # Uniform from 2 to 125: 0.79 of the short ones are below 100.
        expected = short * 98 / 124
        error = 5 * (0.25 / len(tokens)) ** 0.5 + 0.02
        assert abs((tokens < 100).mean() - expected) < error


def test_truncation_restated_token_by_token():
    for seed in range(300):
        rng = random.Random(seed)
        a, b = rng.randrange(1, 80), rng.randrange(1, 80)
        limit = rng.randrange(2, 60)
        a_from, a_to, b_from, b_to = pairs.truncate(
            (100, 100 + a, 500, 500 + b), limit, rng
        )
        # google-research/bert: the longer, or else B, loses one at a time.
        while a + b > limit:
            if a > b:
                a -= 1
            else:
                b -= 1
        assert (a_to - a_from, b_to - b_from) == (a, b)
        assert 100 <= a_from and 500 <= b_from


def test_truncation_takes_from_both_ends_alike():
    rng = random.Random(0)
    front = [pairs.truncate((0, 200, 0, 1), 101, rng)[0] for _ in range(500)]
    # Binomial(100, 1/2): mean 50, standard deviation 5; over 500, 0.22.
    assert abs(np.mean(front) - 50) < 1.2
    assert 4 < np.std(front) < 6


def test_one_document_alone_has_positives_only():
    _, _, made = make(16, 0.0, data=([5], [6, 6, 6, 6, 6]))
    assert (made.labels == pairs.FOLLOWS).all() and len(made.labels)
    _, _, made = make(data=([1], [6]))
    assert len(made.labels) == 0 and made.without_partner == [0]


def test_documents_of_one_sentence():
    _, _, made = make(data=([1, 1], [300, 4]))
    assert (made.labels == pairs.RANDOM).all() and len(made.labels) == 2


def test_same_seed_same_pairs():
    first, again, other = make(seed=1)[2], make(seed=1)[2], make(seed=2)[2]
    assert (first.spans == again.spans).all()
    assert first.spans.tolist() != other.spans.tolist()


def test_assemble():
    tokens = np.arange(1000, 1100)
    spans = np.array([[0, 2, 10, 13], [5, 6, 7, 12]])
    ids, lengths = pairs.assemble(tokens, spans, 10, SPECIAL, "uint16")
    assert ids.dtype == np.uint16 and lengths.dtype == np.uint16
    assert ids.tolist() == [
        [101, 1000, 1001, 102, 1010, 1011, 1012, 102, 0, 0],
        [101, 1005, 102, 1007, 1008, 1009, 1010, 1011, 102, 0],
    ]
    assert lengths.tolist() == [[4, 4], [3, 6]]
