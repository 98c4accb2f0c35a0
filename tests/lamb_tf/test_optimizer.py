import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.lamb_tf.conftest import HOSTS


def make(host, **arguments):
    names = ["kernel", "bias"]
    variables = [host.variable(tf.ones([3]), name) for name in names]
    optimizer = host.LAMB(0.1, weight_decay=0.1, **arguments)
    return optimizer, variables


def test_describe(host):
    optimizer, variables = make(
        host,
        exclude_from_weight_decay=["bias"],
        exclude_from_layer_adaptation=[],
    )
    optimizer.build(variables)
    rows = [line.split() for line in optimizer.describe().splitlines()]
    assert rows == [
        ["variable", "shape", "decayed", "adapted"],
        ["kernel", "(3,)", "yes", "yes"],
        ["bias", "(3,)", "no", "yes"],
    ]
    assert f"{optimizer}" == optimizer.describe()


def test_trust_ratios(host, run):
    optimizer, variables = make(host, exclude_from_weight_decay=["bias"])
    step = run(
        lambda: optimizer.apply_gradients(
            [(tf.ones([3]), v) for v in variables]
        )
    )
    step()
    ratios = optimizer.trust_ratios
    assert list(ratios) == ["kernel", "bias"]
    np.testing.assert_allclose(ratios["kernel"], 1 / 1.1, rtol=1e-5)
    assert float(ratios["bias"]) == 1.0
    names = [v.name for v in optimizer.variables]
    assert not [name for name in names if "trust" in name]


def test_pattern_without_a_match_warns_at_build(host):
    optimizer, variables = make(host, exclude_from_weight_decay=["beta"])
    with pytest.warns(UserWarning, match="'beta' matches no variable"):
        optimizer.build(variables)
    optimizer, variables = make(host, exclude_from_weight_decay=["bias"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.build(variables)


def test_variables_as_exclusions(host):
    variables = make(host)[1]
    optimizer = host.LAMB(exclude_from_weight_decay=[variables[1]])
    optimizer.build(variables)
    flags = [entry.layer.adapted for entry in optimizer._entries.value]
    assert flags == [True, False]
    config = optimizer.get_config()
    assert config["exclude_from_weight_decay"] == ["^bias$"]


def test_exclusion_method_of_the_base_class(host):
    optimizer, variables = make(host)
    optimizer.exclude_from_weight_decay(
        var_list=[variables[0]], var_names=["bias"]
    )
    optimizer.build(variables)
    decays = [e.layer.weight_decay for e in optimizer._entries.value]
    assert decays == [0.0, 0.0]
    with pytest.raises(ValueError, match="before"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])


def test_one_step_counts_once(host):
    optimizer = host.LAMB(0.1)
    variables = [host.variable(tf.ones([2]), f"v{i}") for i in range(10)]
    optimizer.apply_gradients([(tf.ones([2]), v) for v in variables])
    assert int(optimizer.iterations) == 1


def test_zero_initialised_weights_learn(host):
    w = host.variable(tf.zeros([3]), "w")
    host.LAMB(0.1).apply_gradients([(tf.ones([3]), w)])
    np.testing.assert_allclose(w.numpy(), -0.1, rtol=1e-5)


def test_no_clipping_by_default(host):
    w = host.variable(tf.ones([3]), "w")
    optimizer = host.LAMB(0.1, beta_1=0.5)
    optimizer.apply_gradients([(tf.fill([3], 1000.0), w)])
    m = optimizer.variables[-2]
    np.testing.assert_allclose(m.numpy(), 500.0)


def test_the_other_keras_names_what_it_refuses(host):
    other = HOSTS["tf_keras" if host.name == "keras" else "keras"]
    model = host.keras.Sequential([host.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=f"lamb_tf.{other.name}.LAMB"):
        model.compile(optimizer=other.LAMB(), loss="mse")
