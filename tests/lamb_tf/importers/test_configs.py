"""The arguments of other LAMBs, as ours."""

import copy
import warnings

import keras
import numpy as np
import pytest
from official.modeling.optimization.configs import optimizer_config

import lamb_tf
from lamb_tf.importers import optimizer_from_config
from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf import peers


@pytest.fixture
def silent():
    """Makes every warning of ours an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def test_addons_config(host):
    config = peers.config("schedule")
    before = copy.deepcopy(config)
    ours = optimizer_from_config(config, host.LAMB).get_config()
    assert config == before
    assert ours["weight_decay"] == 0.1
    assert ours["beta_2"] == float(np.float32(0.999))
    assert ours["exclude_from_weight_decay"] == ["bias", "norm"]
    assert ours["exclude_from_layer_adaptation"] == ["bias"]
    rate = ours["learning_rate"]
    assert rate["class_name"] == "PolynomialDecay"
    assert rate["config"]["decay_steps"] == 12


def test_addons_decay_and_patterns(host):
    optimizer = optimizer_from_config(peers.config("decay"), host.LAMB)
    ours = optimizer.get_config()
    assert ours["clipvalue"] == 0.05
    # The name of a variable ends in ":0" there, the path here does not.
    assert ours["exclude_from_weight_decay"] == ["norm/.*$"]
    rate = optimizer._learning_rate
    assert float(rate(8)) == pytest.approx(0.02 / (1 + 0.25 * 8), rel=1e-6)


@pytest.mark.parametrize("old", [True, False])
def test_flat_and_old_configs(host, old):
    config = {"name": "LAMB", "learning_rate": 0.1, "decay": 0.0}
    config["weight_decay_rate" if old else "weight_decay"] = 0.2
    with pytest.warns(UserWarning, match="does not say which variables were"):
        optimizer = optimizer_from_config(config, host.LAMB)
    assert optimizer.weight_decay == 0.2
    assert optimizer.get_config()["epsilon"] == 1e-6


def test_tf_models_dataclasses(host, silent):
    config = optimizer_config.LAMBConfig(
        weight_decay_rate=0.01,
        exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=[],
        global_clipnorm=1.0,
    ).as_dict()
    whole = {"optimizer": {"type": "lamb", "lamb": config}, "ema": None}
    for given in (config, whole, whole["optimizer"]):
        ours = optimizer_from_config(
            given, host.LAMB, learning_rate=WarmupPolynomialDecay(0.1, 2, 9)
        ).get_config()
        assert ours["weight_decay"] == 0.01
        assert ours["global_clipnorm"] == 1.0
        assert ours["exclude_from_weight_decay"] == ["bias"]
        # tf-models reads [] as the decay list.
        assert ours["exclude_from_layer_adaptation"] is None
        assert ours["learning_rate"]["class_name"] == "WarmupPolynomialDecay"
    with pytest.raises(ValueError, match="no learning rate"):
        optimizer_from_config(whole, host.LAMB)


def test_keras_config(host):
    peer = keras.optimizers.Lamb(
        keras.optimizers.schedules.CosineDecay(0.1, 9),
        weight_decay=0.1,
        global_clipnorm=1.0,
    )
    config = keras.optimizers.serialize(peer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = optimizer_from_config(config, host.LAMB).get_config()
    said = " ".join(str(w.message) for w in caught)
    assert "outside the trust ratio" in said
    assert "does not save `exclude_from_weight_decay()`" in said
    assert "their sum is clipped" in said
    assert len(caught) == 3
    assert ours["weight_decay"] == 0.1
    assert ours["exclude_from_layer_adaptation"] == []
    assert ours["learning_rate"]["class_name"] == "CosineDecay"


def test_keras_schedule_counts_micro_steps():
    config = keras.optimizers.Lamb(
        0.05, gradient_accumulation_steps=2
    ).get_config()
    config["learning_rate"] = {
        "class_name": "CosineDecay",
        "config": {"initial_learning_rate": 0.1, "decay_steps": 9},
    }
    with pytest.warns(UserWarning, match="counts micro-steps"):
        optimizer_from_config(config, lamb_tf.keras.LAMB)


def test_the_lamb_in_force_is_the_default(silent):
    optimizer = optimizer_from_config(peers.config("defaults"))
    assert type(optimizer) is lamb_tf.LAMB


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ("LAMB", "must be a dictionary"),
        ({"learning_rate": 0.1}, "does not say whose it is"),
        ({"class_name": "Adam", "config": {}}, "of 'Adam' can not"),
        ({"class_name": "lamb_tf>LAMB", "config": {}}, "LAMB.from_config"),
        ({"type": "adamw", "adamw": {}}, "type='adamw'"),
        ({"decay": 0.0, "learning_rate": 0.1, "amsgrad": True}, "amsgrad=True"),
        ({"decay": 0.0}, "no learning rate"),
        (
            {"learning_rate": 1.0, "weight_decay_rate": 0.1, "weight_decay": 0},
            "both `weight_decay_rate=0.1` and `weight_decay=0`",
        ),
        (
            {"decay": 0.1, "learning_rate": {"class_name": "CosineDecay"}},
            "`decay=0.1` divides a schedule",
        ),
        (
            {"decay": 0.0, "learning_rate": {"class_name": "Own"}},
            "'Own' can not be made in .*keras: no such schedule",
        ),
        (
            {
                "decay": 0.0,
                "learning_rate": {
                    "class_name": "CosineDecay",
                    "config": {"steps": 1},
                },
            },
            "'CosineDecay' can not be made.*steps",
        ),
        (
            {
                "decay": 0.0,
                "learning_rate": 0.1,
                "exclude_from_weight_decay": ["a:0|b:0"],
            },
            "asks for the ':0'",
        ),
    ],
)
def test_configs_refused(host, config, match):
    with pytest.raises(ValueError, match=match):
        optimizer_from_config(config, host.LAMB)
