"""The update is that of the global batch, however it is split."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain import phases
from bert_pretrain.input import pipeline
from bert_pretrain.input.prepared import PreparedData
from bert_pretrain.modeling import pretrainer
from bert_pretrain.training.step import TrainStep
from lamb_tf.tf_keras import LAMB

STEPS = 3
CLIP = 0.05


@pytest.fixture
def recipe(recipe):
    """Micro-batches with very different numbers of masked tokens."""
    recipe.task.data.masked_lm_prob = 0.5
    recipe.trainer.phases[0].seq_length = 64
    recipe.trainer.phases[0].max_predictions_per_seq = 32
    return recipe


def _train(recipe, replicas, micro, clip=CLIP, change=lambda batch: batch):
    """Returns start, weights and metrics after `STEPS` updates."""
    strategy = (
        tf.distribute.OneDeviceStrategy("cpu:0")
        if replicas == 1
        else tf.distribute.MirroredStrategy(
            [f"cpu:{i}" for i in range(replicas)]
        )
    )
    phase = recipe.trainer.phases[0]
    data = PreparedData(recipe.task.data.input_path)
    plan = phases.plan_batch(phase.global_batch_size, replicas, micro)
    arguments = dataclasses.asdict(recipe.trainer.optimizer)
    arguments["global_clipnorm"] = clip
    with strategy.scope():
        model = pretrainer.build_model(recipe.task.model, seed=3)
        step = TrainStep(model, LAMB(0.05, **arguments))
    dataset = strategy.distribute_datasets_from_function(
        lambda context: pipeline.train_dataset(
            data, recipe, 0, 0, plan, context
        ).map(change)
    )

    @tf.function
    def run(batch):
        return strategy.run(step, args=(batch, phase.global_batch_size, 0))

    start = [w.copy() for w in model.get_weights()]
    metrics = []
    for _, batch in zip(range(STEPS), dataset, strict=False):
        values = run(batch)
        metrics.append(
            {
                name: float(strategy.experimental_local_results(value)[0])
                for name, value in values.items()
            }
        )
    return start, model.get_weights(), metrics


def _difference(start, one, other):
    """Largest difference of two updates, relative to the update."""
    return max(
        np.abs(a - b).max() / (np.abs(a - s).max() + 1e-6)
        for s, a, b in zip(start, one, other, strict=True)
    )


# float32 sums in another order, amplified by LAMB's first steps where a
# gradient is near zero.
TOLERANCE = 2e-3


@pytest.mark.parametrize(
    ("replicas", "micro"), [(1, 4), (1, 1), (2, None), (2, 2)]
)
def test_any_split_gives_the_same_update(recipe, replicas, micro):
    start, want, want_metrics = _train(recipe, 1, None)
    assert all(m["grad_norm"] > CLIP for m in want_metrics), "clip is active"
    _, got, metrics = _train(recipe, replicas, micro)
    assert _difference(start, want, got) <= TOLERANCE
    for one, other in zip(want_metrics, metrics, strict=True):
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=1e-4), name


def test_a_mean_of_means_would_be_seen(recipe):
    """The peers' fault: each micro-batch divided by its own count."""

    def own_counts(batch):
        weights = batch["masked_lm_weights"]
        counts = tf.reduce_sum(weights, axis=[1, 2], keepdims=True)
        tf.debugging.assert_greater(
            tf.reduce_max(counts), 1.2 * tf.reduce_min(counts)
        )
        mean = tf.reduce_mean(counts)
        return {**batch, "masked_lm_weights": weights * mean / counts}

    start, want, _ = _train(recipe, 1, None)
    _, wrong, _ = _train(recipe, 1, 1, change=own_counts)
    assert _difference(start, want, wrong) > 5 * TOLERANCE


def test_an_inactive_clip_would_be_seen(recipe):
    start, want, _ = _train(recipe, 1, None)
    _, unclipped, _ = _train(recipe, 1, None, clip=None)
    assert _difference(start, want, unclipped) > 5 * TOLERANCE
