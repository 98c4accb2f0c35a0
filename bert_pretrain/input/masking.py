"""Dynamic masking: 80/10/10 of BERT, a function of (seed, example index).

Source: arXiv 1810.04805, section 3.1 task 1 and appendix A.1; the count per
sequence as in google-research/bert: `round(15% of the tokens)`, at least one,
at most `max_predictions_per_seq`.
"""

import dataclasses

import tensorflow as tf

from bert_pretrain import random_bits

_MASK_BELOW = int(0.8 * 2**32)  # 80%: [MASK]
_RANDOM_BELOW = int(0.9 * 2**32)  # 10%: a random token; the rest stays.


@dataclasses.dataclass(frozen=True)
class Masking:
    """The masking of one phase.

    Attributes:
      key: `random_bits.stream_key` of the run's masks.
      stream: The phase, see `random_bits.example_bits`.
      max_predictions_per_seq: P, static width of the predictions.
      masked_lm_prob: Share of a sequence's tokens, [CLS] and [SEP] counted.
      vocab_size: Random replacements are uniform over [0, vocab_size).
      mask_id: Id of [MASK].
      special_ids: Ids never masked: [PAD], [CLS], [SEP].
    """

    key: int
    stream: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    vocab_size: int
    mask_id: int
    special_ids: tuple[int, ...]

    def __call__(
        self,
        ids: tf.Tensor,
        segment_lengths: tf.Tensor,
        labels: tf.Tensor,
        first_index: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Masks consecutive examples of the stream.

        Args:
          ids: int32 [n, S], n and S static.
          segment_lengths: int32 [n, 2], tokens of the two segments.
          labels: int32 [n], 1 where the second segment is random.
          first_index: int64 scalar, stream index of the first example.

        Returns:
          tf-models' features: `input_word_ids`, `input_mask`,
          `input_type_ids` int32 [n, S]; `masked_lm_positions`,
          `masked_lm_ids` int32 [n, P]; `masked_lm_weights` float32 [n, P];
          `next_sentence_labels` int32 [n].
        """
        n, seq_length = ids.shape
        width = self.max_predictions_per_seq
        bits = random_bits.example_bits(
            self.key, self.stream, first_index, n, seq_length + 2 * width
        )
        order, action, replacement = tf.split(
            tf.cast(bits, tf.int64), [seq_length, width, width], axis=1
        )

        length = tf.reduce_sum(segment_lengths, axis=1, keepdims=True)
        column = tf.range(seq_length)[tf.newaxis]
        special = tf.reduce_any(
            ids[:, :, tf.newaxis] == tf.constant(self.special_ids), axis=2
        )
        # The largest random keys win: a uniform draw without replacement.
        keys = tf.where(special, tf.constant(-1, tf.int64), order)
        keys, positions = tf.math.top_k(keys, width)
        wanted = tf.round(
            tf.cast(length, tf.float32) * tf.constant(self.masked_lm_prob)
        )
        wanted = tf.clip_by_value(tf.cast(wanted, tf.int32), 1, width)
        # A sequence of fewer ordinary tokens than wanted predicts them all.
        chosen = (tf.range(width)[tf.newaxis] < wanted) & (keys >= 0)

        positions = tf.where(chosen, positions, 0)
        originals = tf.gather(ids, positions, batch_dims=1)
        replaced = tf.where(
            action < _MASK_BELOW,
            self.mask_id,
            tf.where(
                action < _RANDOM_BELOW,
                tf.cast(replacement % self.vocab_size, tf.int32),
                originals,
            ),
        )
        # Unused slots point at [CLS] and write back what stands there.
        replaced = tf.where(chosen, replaced, originals)
        row = tf.broadcast_to(tf.range(n)[:, tf.newaxis], [n, width])
        masked = tf.tensor_scatter_nd_update(
            ids, tf.stack([row, positions], axis=2), replaced
        )
        return {
            "input_word_ids": masked,
            "input_mask": tf.cast(column < length, tf.int32),
            "input_type_ids": tf.cast(
                (column >= segment_lengths[:, :1]) & (column < length), tf.int32
            ),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.where(chosen, originals, 0),
            "masked_lm_weights": tf.cast(chosen, tf.float32),
            "next_sentence_labels": labels,
        }
