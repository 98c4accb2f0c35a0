import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain import random_bits
from bert_pretrain.input.masking import Masking

VOCAB, MASK, LENGTH, WIDTH = 1000, 4, 128, 20
SPECIAL = (0, 2, 3)  # [PAD], [CLS], [SEP]


def _masking(**changes):
    values = {
        "key": random_bits.stream_key(0, "masks"),
        "stream": 0,
        "max_predictions_per_seq": WIDTH,
        "masked_lm_prob": 0.15,
        "vocab_size": VOCAB,
        "mask_id": MASK,
        "special_ids": SPECIAL,
    }
    return Masking(**(values | changes))


def _examples(n, seed=0):
    """[CLS] A [SEP] B [SEP] [PAD]... of random lengths."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((n, LENGTH), np.int32)
    lengths = np.zeros((n, 2), np.int32)
    for row in range(n):
        total = rng.integers(8, LENGTH + 1)
        first = rng.integers(3, total - 2)
        ids[row, :total] = rng.integers(5, VOCAB, total)
        ids[row, [0, first - 1, total - 1]] = 2, 3, 3
        lengths[row] = first, total - first
    labels = rng.integers(0, 2, n).astype(np.int32)
    return tf.constant(ids), tf.constant(lengths), tf.constant(labels)


def _numpy(features):
    return {name: value.numpy() for name, value in features.items()}


def test_selection_is_berts():
    ids, lengths, labels = _examples(500)
    out = _numpy(_masking()(ids, lengths, labels, tf.constant(0, tf.int64)))
    ids, total = ids.numpy(), lengths.numpy().sum(1)
    for row in range(len(ids)):
        chosen = out["masked_lm_weights"][row] == 1
        positions = out["masked_lm_positions"][row, chosen]
        assert len(positions) == min(WIDTH, max(1, round(total[row] * 0.15)))
        assert len(set(positions)) == len(positions)
        np.testing.assert_array_equal(
            out["masked_lm_ids"][row, chosen], ids[row, positions]
        )
        assert not np.isin(ids[row, positions], SPECIAL).any()
        untouched = np.delete(np.arange(LENGTH), positions)
        np.testing.assert_array_equal(
            out["input_word_ids"][row, untouched], ids[row, untouched]
        )
    np.testing.assert_array_equal(out["input_mask"].sum(1), total)
    np.testing.assert_array_equal(
        out["input_type_ids"].sum(1), lengths.numpy()[:, 1]
    )
    np.testing.assert_array_equal(out["next_sentence_labels"], labels)


def test_80_10_10_and_uniform_positions():
    ids, lengths, labels = _examples(8000)
    out = _numpy(_masking()(ids, lengths, labels, tf.constant(0, tf.int64)))
    chosen = out["masked_lm_weights"] == 1
    new = np.take_along_axis(
        out["input_word_ids"], out["masked_lm_positions"], 1
    )[chosen]
    old = out["masked_lm_ids"][chosen]
    n = len(old)
    # Four standard deviations of a binomial share.
    tolerance = 4 * np.sqrt(0.25 / n)
    assert abs((new == MASK).mean() - 0.8) < tolerance
    kept = 0.1 + 0.1 / VOCAB  # A random token may be the old one.
    assert abs((new == old).mean() - kept) < tolerance
    assert abs(((new != MASK) & (new != old)).mean() - 0.1) < tolerance
    # Each ordinary position of a sequence is as likely as the next.
    total = lengths.numpy().sum(1)
    relative = (out["masked_lm_positions"] / total[:, np.newaxis])[chosen]
    assert abs(relative.mean() - 0.5) < 4 * np.sqrt(1 / 12 / n) + 0.01


@pytest.mark.parametrize("size", [1, 3, 8])
def test_masks_depend_on_the_example_alone(size):
    ids, lengths, labels = _examples(24)
    masking = _masking()
    whole = _numpy(masking(ids, lengths, labels, tf.constant(100, tf.int64)))
    for first in range(0, 24, size):
        rows = slice(first, first + size)
        part = masking(
            ids[rows],
            lengths[rows],
            labels[rows],
            tf.constant(100 + first, tf.int64),
        )
        for name, value in _numpy(part).items():
            np.testing.assert_array_equal(value, whole[name][rows], name)


def test_masks_differ_between_epochs_and_seeds():
    examples = _examples(16)
    first = _masking()(*examples, tf.constant(0, tf.int64))
    later = _masking()(*examples, tf.constant(16, tf.int64))
    other = _masking(key=random_bits.stream_key(1, "masks"))(
        *examples, tf.constant(0, tf.int64)
    )
    for changed in (later, other):
        assert np.any(
            changed["masked_lm_positions"] != first["masked_lm_positions"]
        )


def test_a_sequence_of_special_tokens_predicts_nothing():
    ids = tf.constant([[2, 3, 3, 0]])
    lengths, labels = tf.constant([[2, 1]]), tf.constant([0])
    out = _masking(max_predictions_per_seq=2)(
        ids, lengths, labels, tf.constant(0, tf.int64)
    )
    np.testing.assert_array_equal(out["masked_lm_weights"], [[0, 0]])
    np.testing.assert_array_equal(out["input_word_ids"], ids)


def test_phases_share_no_random_numbers():
    """Blocks of different sizes overlap, unless the phase parts them."""
    key, zero = random_bits.stream_key(0, "masks"), tf.constant(0, tf.int64)
    long = random_bits.example_bits(key, 0, zero, 4, 640).numpy().ravel()
    short = random_bits.example_bits(key, 1, zero, 16, 160).numpy().ravel()
    assert not np.intersect1d(long, short).size
    same = random_bits.example_bits(key, 0, zero, 16, 160).numpy().ravel()
    assert np.intersect1d(long, same).size == long.size, "the control"


def test_indices_beyond_32_bits():
    examples = _examples(2)
    far = [
        _masking()(*examples, tf.constant(start, tf.int64))
        for start in (0, 2**32, 2**40)
    ]
    assert np.any(far[0]["input_word_ids"] != far[1]["input_word_ids"])
    assert np.any(far[1]["input_word_ids"] != far[2]["input_word_ids"])
