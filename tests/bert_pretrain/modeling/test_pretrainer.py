import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.nlp.tasks import masked_lm

from bert_pretrain import phases
from bert_pretrain.input import pipeline
from bert_pretrain.input.prepared import PreparedData
from bert_pretrain.modeling import pretrainer


@pytest.fixture
def batch(recipe):
    data = PreparedData(recipe.task.data.input_path)
    plan = phases.plan_batch(16, 1, None)
    dataset = pipeline.train_dataset(data, recipe, 0, 0, plan)
    return {name: value[0] for name, value in next(iter(dataset)).items()}


def test_losses_equal_tf_models_own(recipe, batch):
    model = pretrainer.build_model(recipe.task.model, seed=1)
    outputs = model(
        {
            name: batch[name]
            for name in (
                "input_word_ids",
                "input_mask",
                "input_type_ids",
                "masked_lm_positions",
            )
        }
    )
    config = masked_lm.MaskedLMConfig()
    config.train_data = masked_lm.cfg.DataConfig(
        {"use_next_sentence_label": True}
    )
    task = masked_lm.MaskedLMTask(config)
    metrics = task.build_metrics()
    labels = {**batch}
    labels["next_sentence_labels"] = batch["next_sentence_labels"][:, None]
    want = task.build_losses(labels, outputs, metrics)
    task.process_metrics(metrics, labels, outputs)

    weights = batch["masked_lm_weights"]
    ours = pretrainer.losses(
        model,
        batch,
        weights / tf.reduce_sum(weights),
        tf.fill([16], 1 / 16),
        training=False,
    )
    np.testing.assert_allclose(ours.mlm_loss + ours.nsp_loss, want, rtol=1e-5)
    theirs = {metric.name: float(metric.result()) for metric in metrics}
    np.testing.assert_allclose(
        [ours.mlm_accuracy, ours.nsp_accuracy],
        [theirs["masked_lm_accuracy"], theirs["next_sentence_accuracy"]],
        rtol=1e-5,
    )


def test_every_trained_variable_has_a_gradient(recipe, batch):
    model = pretrainer.build_model(recipe.task.model, seed=1)
    variables = pretrainer.pretraining_variables(model)
    with tf.GradientTape() as tape:
        sums = pretrainer.losses(
            model,
            batch,
            batch["masked_lm_weights"],
            tf.ones([16]),
            training=False,
        )
        loss = sums.mlm_loss + sums.nsp_loss
    gradients = tape.gradient(loss, variables)
    assert all(gradient is not None for gradient in gradients)
    left_out = {v.name for v in model.trainable_variables} - {
        v.name for v in variables
    }
    assert all("pooler_transform" in name for name in left_out)
    assert len(left_out) == 2


def test_the_position_table_is_long_enough_for_every_phase(recipe):
    model = pretrainer.build_model(recipe.task.model, seed=1)
    (table,) = (v for v in model.variables if "position_embedding" in v.name)
    assert table.shape[0] == 64


def test_the_seed_gives_the_weights(recipe):
    one, two, other = (
        pretrainer.build_model(recipe.task.model, seed).get_weights()
        for seed in (1, 1, 2)
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


def test_exclusions_of_the_recipe_meet_biases_and_layer_norms(recipe):
    import re

    model = pretrainer.build_model(recipe.task.model, seed=1)
    patterns = recipe.trainer.optimizer.exclude_from_weight_decay
    for variable in pretrainer.pretraining_variables(model):
        excluded = any(re.search(p, variable.name) for p in patterns)
        matrix = len(variable.shape) > 1 and "bias" not in variable.name
        assert excluded != matrix, variable.name
    assert tf_keras.mixed_precision.global_policy().name == "float32"
