"""Both optimizers at work: fit and checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf import problems
from tests.lamb_tf.models import fit, model_of, weights_of

MODES = [
    {"jit_compile": False},
    {"jit_compile": True},
    {"run_eagerly": True},
    {"jit_compile": "auto"},
]


def test_fit_in_every_mode(host):
    results = []
    for mode in MODES:
        if host.name == "tf_keras" and mode == {"jit_compile": "auto"}:
            mode = {"jit_compile": None}
        model = model_of(host, **mode)
        losses = fit(model, 6)
        assert losses[-1] < losses[0]
        assert int(model.optimizer.iterations) == 24
        results.append(weights_of(model))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_fit_in_mixed_precision(host, policy):
    host.keras.mixed_precision.set_global_policy(policy)
    try:
        model = model_of(host)
        losses = fit(model, 6)
    finally:
        host.keras.mixed_precision.set_global_policy("float32")
    assert losses[-1] < losses[0]
    assert all(w.dtype == np.float32 for w in weights_of(model))


def trainer(host, weights):
    variables = {
        k: host.variable(w, k.replace("/", "_")) for k, w in weights.items()
    }
    optimizer = host.LAMB(
        WarmupPolynomialDecay(0.05, 3, 14),
        weight_decay=0.1,
        exclude_from_weight_decay=["gamma"],
    )
    checkpoint = tf.train.Checkpoint(
        optimizer=optimizer,
        **{k.replace("/", "_"): v for k, v in variables.items()},
    )

    @tf.function
    def step(grads):
        optimizer.apply_gradients([(grads[k], variables[k]) for k in variables])

    return variables, optimizer, checkpoint, step


@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
def test_resumed_run_equals_the_unbroken_one(host, tmp_path, built):
    weights, gradients = problems.make()
    variables, _, checkpoint, step = trainer(host, weights)
    for grads in gradients[:5]:
        step(grads)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    for grads in gradients[5:]:
        step(grads)

    resumed, optimizer, checkpoint, step = trainer(host, weights)
    if built:
        optimizer.build(list(resumed.values()))
    status = checkpoint.restore(path)
    if built:
        status.assert_consumed()
    for i, grads in enumerate(gradients[5:]):
        step(grads)
        if i == 0:
            status.assert_consumed()
    assert int(optimizer.iterations) == 10
    for k in variables:
        np.testing.assert_array_equal(resumed[k].numpy(), variables[k].numpy())
    again = checkpoint.save(str(tmp_path / "again"))
    names = {n for n, _ in tf.train.list_variables(again)}
    assert names == {n for n, _ in tf.train.list_variables(path)}


@pytest.mark.parametrize("suffix", ["keras", "tf"])
def test_saved_model_resumes(host, tmp_path, suffix):
    if host.name == "keras" and suffix == "tf":
        pytest.skip("Keras 3 exports a SavedModel without its optimizer")
    whole = model_of(host)
    fit(whole, 2)
    part = model_of(host)
    fit(part, 1)
    path = str(tmp_path / f"model.{suffix}")
    part.save(path)
    loaded = host.keras.models.load_model(path)
    assert type(loaded.optimizer) is host.LAMB
    assert loaded.optimizer.get_config() == part.optimizer.get_config()
    if suffix == "tf":
        return  # The format holds no state of any optimizer of Keras.
    fit(loaded, 1)
    for a, b in zip(weights_of(whole), weights_of(loaded), strict=True):
        np.testing.assert_array_equal(a, b)


def test_own_variables_load_before_build(host):
    weights, gradients = problems.make()
    variables, optimizer, _, step = trainer(host, weights)
    for grads in gradients[:5]:
        step(grads)
    store = {}
    optimizer.save_own_variables(store)
    weights = {k: v.numpy() for k, v in variables.items()}
    loaded, other, _, other_step = trainer(host, weights)
    other.load_own_variables(store)
    for grads in gradients[5:]:
        step(grads)
        other_step(grads)
    for k in variables:
        np.testing.assert_array_equal(loaded[k].numpy(), variables[k].numpy())
