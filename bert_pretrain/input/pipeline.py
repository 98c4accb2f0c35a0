"""Position → masked batches, as `tf.data`.

An element is what one replica computes for one optimizer step: every feature
has shape [accumulation_steps, micro_batch_size, ...]. `first_index`, int64
[accumulation_steps], is the stream index of the first example of each
micro-batch; the examples of a micro-batch are consecutive, so it keys their
masks here and their dropout in the step.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_pretrain import phases as phase_arithmetic
from bert_pretrain import random_bits
from bert_pretrain.config import Config, Phase
from bert_pretrain.data.records import Records
from bert_pretrain.input import lanes
from bert_pretrain.input.masking import Masking
from bert_pretrain.input.prepared import PreparedData

# Held-out masks are the same whatever the recipe's seed: runs compare.
_EVALUATION_SEED = 0


def train_dataset(
    data: PreparedData,
    config: Config,
    phase_index: int,
    first_step: int,
    plan: phase_arithmetic.BatchPlan,
) -> tf.data.Dataset:
    """Builds the batches of one phase from any step on.

    Args:
      data: The prepared folder.
      config: The recipe.
      phase_index: Which phase.
      first_step: Step within the phase to begin with; earlier examples are
        not read, drawn or masked.
      plan: How the phase's global batch is computed.

    Returns:
      Elements as the module describes, replica after replica, step after
      step, to the end of the phase.
    """
    phase = config.trainer.phases[phase_index]
    span = phase_arithmetic.spans(config.trainer.phases)[phase_index]
    shards = data.shards(phase.seq_length, "train")
    order = lanes.LaneOrder(
        len(shards[0].ids),
        len(shards),
        phase.global_batch_size,
        # Phases of one length must not start with the same examples again.
        random_bits.stream_key(config.trainer.seed, f"order/{phase_index}"),
    )

    def elements() -> Iterator[tuple]:
        for step in range(first_step, phase.train_steps):
            base = span.first_example + step * phase.global_batch_size
            for replica in range(plan.replicas):
                first = replica * plan.per_replica
                rows = slice(first, first + plan.per_replica)
                batch = lanes.gather(shards, order, step, rows)
                yield (*_as_int32(batch), base + first)

    masking = make_masking(data, config, phase, config.trainer.seed)
    shape = (plan.accumulation_steps, plan.micro_batch_size)

    def to_micro_batches(*element):
        features = masking(*element)
        features = {
            name: tf.reshape(value, [*shape, *value.shape[1:]])
            for name, value in features.items()
        }
        starts = tf.range(plan.accumulation_steps, dtype=tf.int64)
        features["first_index"] = element[-1] + starts * plan.micro_batch_size
        return features

    return (
        _from_elements(elements, plan.per_replica, phase.seq_length)
        .map(to_micro_batches, tf.data.AUTOTUNE, deterministic=True)
        .prefetch(4)
    )


def eval_dataset(
    data: PreparedData, config: Config, phase: Phase, batch_size: int
) -> tf.data.Dataset:
    """Builds one pass over the held-out examples of a phase's length.

    Args:
      data: The prepared folder.
      config: The recipe.
      phase: Gives length and predictions per sequence.
      batch_size: Sequences per element; the last one is filled up with
        examples of weight 0.

    Returns:
      Masked features of shape [batch_size, ...] with `example_weights`
      float32 [batch_size]. The masks are the same in every evaluation.
    """
    shards = data.shards(phase.seq_length, "heldout")
    whole = Records(*map(np.concatenate, zip(*shards, strict=True)))
    count = len(whole.ids)

    def elements() -> Iterator[tuple]:
        for first in range(0, count, batch_size):
            rows = np.arange(first, first + batch_size) % count
            batch = Records(*(field[rows] for field in whole))
            yield (*_as_int32(batch), first)

    masking = make_masking(data, config, phase, _EVALUATION_SEED)

    def masked(*element):
        features = masking(*element)
        row = element[-1] + tf.range(batch_size, dtype=tf.int64)
        weights = tf.cast(row < count, tf.float32)
        features["example_weights"] = weights
        features["masked_lm_weights"] *= weights[:, tf.newaxis]
        return features

    return (
        _from_elements(elements, batch_size, phase.seq_length)
        .map(masked, tf.data.AUTOTUNE, deterministic=True)
        .prefetch(4)
    )


def make_masking(
    data: PreparedData, config: Config, phase: Phase, seed: int
) -> Masking:
    """Returns the masking of a phase."""
    return Masking(
        key=random_bits.stream_key(seed, "masks"),
        max_predictions_per_seq=phase.max_predictions_per_seq,
        masked_lm_prob=config.task.data.masked_lm_prob,
        vocab_size=len(data.vocabulary),
        mask_id=data.mask_id,
        special_ids=data.special_ids,
    )


def _as_int32(batch: Records) -> tuple[np.ndarray, ...]:
    return tuple(field.astype(np.int32) for field in batch)


def _from_elements(elements, rows: int, seq_length: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        elements,
        output_signature=(
            tf.TensorSpec([rows, seq_length], tf.int32),
            tf.TensorSpec([rows, 2], tf.int32),
            tf.TensorSpec([rows], tf.int32),
            tf.TensorSpec([], tf.int64),
        ),
    )
