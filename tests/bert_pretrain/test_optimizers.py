"""`lamb_tf` and `lars_tf` as tf-models' own machinery makes them."""

import copy
import dataclasses
import inspect
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import yaml
from official.core import (
    config_definitions,
    task_factory,
    train_lib,
    train_utils,
)
from official.modeling import hyperparams, optimization
from official.utils.testing import mock_task  # noqa: F401

from bert_pretrain import config as recipes
from bert_pretrain import experiments, optimizers  # noqa: F401
from lamb_tf.callbacks import TrustRatioLogger
from lamb_tf.tf_keras import LAMB, LARS

CLASSES = {"lamb_tf": LAMB, "lars_tf": LARS}
# Of each argument a value that is not the default.
COMMON = {
    "weight_decay": 0.01,
    "exclude_from_weight_decay": ["[Ll]ayer_?[Nn]orm", "bias"],
    "exclude_from_layer_adaptation": [],
    "trust_clip": [0.01, 10.0],
    "norm": "linf",
    "global_clipnorm": 1.0,
    "use_ema": True,
    "ema_momentum": 0.9,
    "ema_overwrite_frequency": 7,
    "jit_compile": False,
    "name": "mine",
}
OTHERS = {
    "lamb_tf": {
        **COMMON,
        "beta_1": 0.8,
        "beta_2": 0.99,
        "epsilon": 1e-8,
        "bias_correction": False,
        "nesterov": "both",
    },
    "lars_tf": {
        **COMMON,
        "momentum": 0.8,
        "trust_coefficient": 0.001,
        "variant": "you2017",
        "nesterov": True,
    },
}


def params(kind, arguments=None, **more):
    return {
        "optimizer": {"type": kind, kind: arguments or {}},
        "learning_rate": {
            "type": "constant",
            "constant": {"learning_rate": 0.125},
        },
        **more,
    }


def build(config, **options):
    factory = optimization.OptimizerFactory(
        optimization.OptimizationConfig(config)
        if isinstance(config, dict)
        else config
    )
    return factory.build_optimizer(factory.build_learning_rate(), **options)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_config_has_every_argument_with_its_default(kind):
    config = optimizers.CONFIGS[kind]().as_dict()
    default = CLASSES[kind]().get_config()
    # The factory's, and what every optimizer of tf_keras writes.
    del default["learning_rate"], default["is_legacy_optimizer"]
    assert config == default
    named = set(inspect.signature(CLASSES[kind]).parameters)
    assert named - {"learning_rate", "base_kwargs"} <= config.keys()


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("kind", CLASSES)
def test_every_argument_reaches_the_optimizer(kind, legacy):
    given = OTHERS[kind]
    others = {"clipnorm", "clipvalue"}  # One kind of clipping at a time.
    assert given.keys() | others == optimizers.CONFIGS[kind]().as_dict().keys()
    optimizer = build(params(kind, given), use_legacy_optimizer=legacy)
    assert type(optimizer) is CLASSES[kind]
    made = optimizer.get_config()
    assert {key: made[key] for key in given} == given
    assert made["learning_rate"] == 0.125


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("value", [None, [], ["bias"]])
@pytest.mark.parametrize(
    "key", ["exclude_from_weight_decay", "exclude_from_layer_adaptation"]
)
def test_none_and_empty_differ_through_yaml_and_overrides(
    tmp_path, kind, key, value
):
    # From another value, so that a lost override shows.
    start = params(kind, {key: ["else"]})
    written = yaml.safe_dump({"optimizer": {kind: {key: value}}})
    flag = (
        f"optimizer.{kind}.{key}="
        + yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
    )
    file = tmp_path / "override.yaml"
    file.write_text(written)
    for override in (yaml.safe_load(written), written, flag, str(file)):
        config = hyperparams.override_params_dict(
            optimization.OptimizationConfig(start), override, is_strict=True
        )
        assert getattr(config.optimizer.get(), key) == value
        # And back: the file that tf-models' trainer leaves in model_dir.
        saved = tmp_path / "params.yaml"
        hyperparams.save_params_dict_to_yaml(config, str(saved))
        again = optimization.OptimizationConfig(yaml.safe_load(saved.open()))
        assert again.as_dict() == config.as_dict()
        assert build(again).get_config()[key] == value


@pytest.mark.parametrize("kind", CLASSES)
def test_a_typo_raises(kind):
    typo = {"weigth_decay": 0.01}
    with pytest.raises(KeyError, match="weigth_decay.*'weight_decay'"):
        optimization.OptimizationConfig(params(kind, typo))
    config = optimization.OptimizationConfig(params(kind))
    with pytest.raises(KeyError, match="weigth_decay"):
        config.override({"optimizer": {kind: typo}}, is_strict=False)
    with pytest.raises(KeyError, match="weigth_decay"):
        hyperparams.override_params_dict(
            config, f"optimizer.{kind}.weigth_decay=0.01", is_strict=True
        )


def test_a_mistyped_section_or_type_raises():
    section = params("lamb_tf")
    section["optimizer"]["lamb_ft"] = {"weight_decay": 0.01}
    with pytest.raises(KeyError, match="'lamb_ft'.*Did you mean 'lamb_tf'"):
        build(section)
    kind = params("lamb_tf")
    kind["optimizer"]["type"] = "lamb_ft"
    with pytest.raises(ValueError, match="lamb_ft"):
        build(kind)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beta_1": 1.0}, "`beta_1`.*1.0"),
        ({"exclude_from_weight_decay": "bias"}, "exclude_from_weight_decay"),
        ({"norm": "l3"}, "`norm`.*l3"),
    ],
)
def test_a_bad_value_raises(changes, words):
    with pytest.raises(ValueError, match=words):
        build(params("lamb_tf", changes))


def test_tf_models_own_types_are_as_they_were():
    fields = {f.name for f in dataclasses.fields(optimization.OptimizerConfig)}
    assert {"lamb", "lars", "sgd", *CLASSES} <= fields
    config = optimization.OptimizationConfig(params("lamb"))
    assert build(config).__class__.__module__.startswith("official.")
    assert config == copy.deepcopy(config)
    assert config != optimization.OptimizationConfig(params("lamb_tf"))
    given = optimization.OptimizerConfig(
        type="lamb_tf", lamb_tf=optimizers.LambTfConfig(beta_1=0.5)
    )
    assert given.get().beta_1 == 0.5
    assert "beta_1=0.5" in repr(given)


def test_learning_rate_and_warmup_of_tf_models():
    config = params("lamb_tf", {"exclude_from_layer_adaptation": [""]})
    config["learning_rate"] = {
        "type": "polynomial",
        "polynomial": {
            "initial_learning_rate": 0.5,
            "decay_steps": 8,
            "end_learning_rate": 0.0,
        },
    }
    config["warmup"] = {"type": "linear", "linear": {"warmup_steps": 2}}
    optimizer = build(config)
    w = tf.Variable([1.0])
    moved = []
    for _ in range(5):
        before = float(w[0])
        optimizer.apply_gradients([(tf.ones(1), w)])
        moved.append(before - float(w[0]))
    # Not adapted, and the same gradient each time: a step is the rate.
    # tf-models' warm-up ends on the curve, and so at 0.5 * (1 - 2/8).
    expected = [0.0, 0.1875, 0.375, 0.3125, 0.25]
    np.testing.assert_allclose(moved, expected, atol=1e-5)


def test_average_of_tf_models(tmp_path):
    optimizer = build(params("lamb_tf", ema={"average_decay": 0.5}))
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
    optimizer.shadow_copy(model)
    w = model.trainable_variables[0]
    average = np.zeros(w.shape)
    logger = TrustRatioLogger(tmp_path)
    for step in range(1, 4):
        gradients = [tf.ones_like(v) for v in model.trainable_variables]
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * w.numpy()
    assert float(optimizer.learning_rate) == 0.125
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == 0.25
    assert logger.log(optimizer)
    end = w.numpy()
    # tf-models swaps under a strategy only.
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        optimizer.swap_weights()
        np.testing.assert_allclose(w.numpy(), average, rtol=1e-5)
        optimizer.swap_weights()
    np.testing.assert_allclose(w.numpy(), end, rtol=1e-5)


def parse(experiment, override=""):
    return train_utils.parse_configuration(
        train_utils.ParseConfigOptions(
            experiment=experiment, config_file=[], params_override=override
        ),
        print_return=False,
    )


@pytest.mark.parametrize("ema", [False, True])
def test_an_experiment_of_tf_models_trains_with_it(tmp_path, ema):
    override = (
        "trainer.optimizer_config.optimizer.type=lamb_tf,"
        "trainer.optimizer_config.optimizer.lamb_tf.weight_decay=0.01,"
        "trainer.optimizer_config.optimizer.lamb_tf"
        ".exclude_from_layer_adaptation=[],"
        "trainer.optimizer_config.learning_rate.type=constant,"
        "trainer.train_steps=4,trainer.steps_per_loop=2,"
        "trainer.validation_steps=1,trainer.validation_interval=2"
    )
    if ema:
        override += ",trainer.optimizer_config.ema.average_decay=0.9"
    config = parse("mock", override)
    assert isinstance(config, config_definitions.ExperimentConfig)
    task = task_factory.get_task(config.task, logging_dir=str(tmp_path))
    train_lib.run_experiment(
        distribution_strategy=tf.distribute.OneDeviceStrategy("CPU:0"),
        task=task,
        mode="train_and_eval",
        params=config,
        model_dir=str(tmp_path),
    )
    found = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert any("_variables/1" in name for name in found)  # A slot.
    train_utils.serialize_config(config, str(tmp_path))
    saved = yaml.safe_load((tmp_path / "params.yaml").open())
    chosen = saved["trainer"]["optimizer_config"]["optimizer"]
    assert chosen["type"] == "lamb_tf"
    assert chosen["lamb_tf"]["exclude_from_layer_adaptation"] == []
    assert chosen["lamb_tf"]["exclude_from_weight_decay"] is None


def test_the_recipes_arguments_are_among_them():
    recipe = {f.name for f in dataclasses.fields(recipes.Optimizer)}
    assert recipe <= optimizers.CONFIGS["lamb_tf"]().as_dict().keys()


def test_experiments_register_it():
    code = (
        "import bert_pretrain.experiments\n"
        "from official.modeling import optimization as o\n"
        "c = o.OptimizationConfig({'optimizer': {'type': 'lars_tf'},"
        "    'learning_rate': {'type': 'constant'}})\n"
        "f = o.OptimizerFactory(c)\n"
        "print(type(f.build_optimizer(f.build_learning_rate())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert "lamb_tf.tf_keras.LARS" in done.stdout, done.stderr
