import numpy as np
import pytest

from bert_pretrain import phases
from bert_pretrain.input import pipeline
from bert_pretrain.input.prepared import PreparedData


def _batches(recipe, phase, first_step, replicas=1, micro=None):
    data = PreparedData(recipe.task.data.input_path)
    plan = phases.plan_batch(
        recipe.trainer.phases[phase].global_batch_size, replicas, micro
    )
    dataset = pipeline.train_dataset(data, recipe, phase, first_step, plan)
    elements = list(dataset.as_numpy_iterator())
    # Undo the split: [steps, global batch, ...].
    return {
        name: np.concatenate(
            [e[name].reshape(-1, *e[name].shape[2:]) for e in elements]
        ).reshape(-1, plan.global_batch_size, *elements[0][name].shape[2:])
        for name in elements[0]
        if name != "first_index"
    }, [e["first_index"] for e in elements]


@pytest.mark.parametrize("phase", [0, 1])
def test_resuming_gives_the_same_examples_and_masks(recipe, phase):
    whole, _ = _batches(recipe, phase, 0)
    rest, _ = _batches(recipe, phase, 3)
    for name, value in rest.items():
        np.testing.assert_array_equal(value, whole[name][3:], name)


@pytest.mark.parametrize(
    ("replicas", "micro"), [(1, 4), (2, None), (2, 2), (4, 1), (8, 2)]
)
def test_the_split_does_not_change_the_batch(recipe, replicas, micro):
    whole, _ = _batches(recipe, 0, 0)
    split, first = _batches(recipe, 0, 0, replicas, micro)
    for name, value in split.items():
        np.testing.assert_array_equal(value, whole[name], name)
    size = micro or 16 // replicas
    np.testing.assert_array_equal(
        np.concatenate(first), np.arange(0, 8 * 16, size)
    )


def test_the_second_phase_continues_the_stream(recipe):
    _, first = _batches(recipe, 1, 0)
    assert first[0][0] == 8 * 16


def test_masks_differ_between_epochs(recipe):
    recipe.trainer.phases[0].train_steps = 400
    batches, _ = _batches(recipe, 0, 0)
    originals = _unmasked(batches)
    _, where, count = np.unique(
        originals, axis=0, return_inverse=True, return_counts=True
    )
    twice = np.flatnonzero(count >= 2)[:20]
    assert len(twice) == 20, "400 steps are several epochs"
    positions = batches["masked_lm_positions"].reshape(len(originals), -1)
    same = [
        np.array_equal(*positions[np.flatnonzero(where.ravel() == i)[:2]])
        for i in twice
    ]
    assert np.mean(same) < 0.2


def _unmasked(batches):
    ids = batches["input_word_ids"].reshape(-1, 32).copy()
    weights = batches["masked_lm_weights"].reshape(len(ids), -1)
    positions = batches["masked_lm_positions"].reshape(len(ids), -1)
    labels = batches["masked_lm_ids"].reshape(len(ids), -1)
    row, slot = np.nonzero(weights)
    ids[row, positions[row, slot]] = labels[row, slot]
    return ids


def test_evaluation_covers_every_held_out_example_once(recipe):
    data = PreparedData(recipe.task.data.input_path)
    phase = recipe.trainer.phases[0]
    batches = list(
        pipeline.eval_dataset(data, recipe, phase, 7).as_numpy_iterator()
    )
    weights = np.concatenate([b["example_weights"] for b in batches])
    count = data.manifest.dataset(32).splits["heldout"].examples
    assert weights.sum() == count and len(weights) % 7 == 0
    padding = np.concatenate([b["masked_lm_weights"] for b in batches])[count:]
    assert not padding.any()
    again = list(
        pipeline.eval_dataset(data, recipe, phase, 7).as_numpy_iterator()
    )
    for one, two in zip(batches, again, strict=True):
        np.testing.assert_array_equal(
            one["input_word_ids"], two["input_word_ids"]
        )
