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


def _train(recipe, replicas, micro, clip=CLIP):
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
        lambda _: pipeline.train_dataset(data, recipe, 0, 0, plan)
    )

    @tf.function
    def run(batch):
        return strategy.run(step, args=(batch, phase.global_batch_size))

    start = [w.copy() for w in model.get_weights()]
    metrics = []
    for _, batch in zip(range(STEPS), dataset, strict=False):
        values = strategy.experimental_local_results(
            tf.nest.map_structure(
                lambda v: strategy.experimental_local_results(v)[0],
                run(batch),
            )
        )[0]
        metrics.append({k: float(v) for k, v in values.items()})
    return start, model.get_weights(), metrics


@pytest.fixture
def reference(recipe):
    return _train(recipe, 1, None)


@pytest.mark.parametrize(
    ("replicas", "micro"), [(1, 4), (1, 1), (2, None), (2, 2)]
)
def test_any_split_gives_the_same_update(recipe, reference, replicas, micro):
    start, want, want_metrics = reference
    assert all(m["grad_norm"] > CLIP for m in want_metrics), "clip is active"
    _, got, metrics = _train(recipe, replicas, micro)
    for before, one, other in zip(start, want, got, strict=True):
        moved = np.abs(one - before).max()
        # float32 sums in another order; LAMB's first steps amplify them
        # where a gradient is near zero.
        assert np.abs(one - other).max() <= 2e-3 * moved + 1e-7
    for one, other in zip(want_metrics, metrics, strict=True):
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=1e-4), name


def test_the_comparison_can_fail(recipe, reference):
    """Clipping less is a different update."""
    start, want, _ = reference
    recipe.trainer.phases[0].max_predictions_per_seq = 4
    _, got, _ = _train(recipe, 1, None)
    assert any(
        np.abs(a - b).max() > 0.01 * np.abs(a - s).max()
        for s, a, b in zip(start, want, got, strict=True)
    )
