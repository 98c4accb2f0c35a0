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
_HELDOUT_KEY = random_bits.stream_key(0, "heldout_masks")


def train_dataset(
    data: PreparedData,
    config: Config,
    phase_index: int,
    first_step: int,
    plan: phase_arithmetic.BatchPlan,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Builds the batches of one phase from any step on.

    Args:
      data: The prepared folder.
      config: The recipe.
      phase_index: Which phase.
      first_step: Step within the phase to begin with; earlier examples are
        not drawn or masked.
      plan: How the phase's global batch is computed.
      context: Which of several hosts this is; it reads its lanes alone.

    Returns:
      Elements as the module describes, this host's replicas one after the
      other, step after step, to the end of the phase.

    Raises:
      ConfigError: If a shard is damaged.
    """
    phase = config.trainer.phases[phase_index]
    span = phase_arithmetic.spans(config.trainer.phases)[phase_index]
    split = data.manifest.dataset(phase.seq_length).splits["train"]
    order = lanes.LaneOrder(
        split.shards[0].examples,
        len(split.shards),
        phase.global_batch_size,
        # Phases of one length must not start with the same examples again.
        random_bits.stream_key(config.trainer.seed, f"order/{phase_index}"),
    )
    hosts = context.num_input_pipelines if context else 1
    host = context.input_pipeline_id if context else 0
    replicas = range(plan.replicas)[
        host * plan.replicas // hosts : (host + 1) * plan.replicas // hosts
    ]
    rows = [
        slice(r * plan.per_replica, (r + 1) * plan.per_replica)
        for r in replicas
    ]
    wanted = order.lanes(slice(rows[0].start, rows[-1].stop))
    shards = data.shards(phase.seq_length, "train", wanted)

    def elements() -> Iterator[tuple]:
        for step in range(first_step, phase.train_steps):
            base = span.first_example + step * phase.global_batch_size
            for part in rows:
                batch = lanes.gather(shards, order, step, part)
                yield (*_as_int32(batch), base + part.start)

    key = random_bits.stream_key(config.trainer.seed, "masks")
    masking = _masking(data, config, phase, key, phase_index)
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
    whole = Records(*map(np.concatenate, zip(*shards.values(), strict=True)))
    count = len(whole.ids)

    def elements() -> Iterator[tuple]:
        for first in range(0, count, batch_size):
            rows = np.arange(first, first + batch_size) % count
            batch = Records(*(field[rows] for field in whole))
            yield (*_as_int32(batch), first)

    masking = _masking(data, config, phase, _HELDOUT_KEY, 0)

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


def _masking(
    data: PreparedData, config: Config, phase: Phase, key: int, stream: int
) -> Masking:
    return Masking(
        key=key,
        stream=stream,
        max_predictions_per_seq=phase.max_predictions_per_seq,
        masked_lm_prob=config.task.data.masked_lm_prob,
        vocab_size=data.vocab_size,
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
