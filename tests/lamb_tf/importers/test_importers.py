"""Runs of other LAMBs, from files they wrote, that go on with ours."""

import json
import os
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.modeling.optimization import ema_optimizer
from official.modeling.optimization import lamb as tf_models

import lamb_tf
from lamb_tf import importers
from tests.lamb_tf import peers, problems
from tests.lamb_tf.conftest import ROOT

EXCLUSIONS = {
    "exclude_from_weight_decay": ["bias", "norm"],
    "exclude_from_layer_adaptation": ["bias"],
}


@pytest.fixture
def silent():
    """Makes every warning of ours an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def array(variable):
    return tf.convert_to_tensor(variable).numpy()


def go_on(optimizer, net, gradients, trajectory, rtol):
    """Asserts that ours moves on, step by step, as the peer did."""
    for t, grads in enumerate(gradients):
        peers.step(optimizer, net, grads)
        problems.assert_same_displacement(
            trajectory[0], peers.values(net), trajectory[t + 1], t + 1, rtol
        )


def addons(run):
    """Returns the checkpoint of a run, its gradients and weights after."""
    record = peers.recorded(run)
    return (
        str(peers.DATA / f"addons_{run}"),
        record["gradients"][peers.SAVED :],
        record["weights"][peers.SAVED :],
    )


def trained(keras_of_peer, peer, directory, **more):
    """Trains a peer and saves it half-way.

    Returns its checkpoint, the gradients and the weights after it, and
    its model.
    """
    weights, gradients = peers.draw()
    net = peers.model(keras_of_peer)
    peers.set_values(net, weights)
    for grads in gradients[: peers.SAVED]:
        peers.step(peer, net, grads)
    checkpoint = tf.train.Checkpoint(model=net, optimizer=peer, **more)
    path = checkpoint.write(str(directory / "ckpt"))
    trajectory = [peers.values(net)]
    for grads in gradients[peers.SAVED :]:
        peers.step(peer, net, grads)
        trajectory.append(peers.values(net))
    return path, gradients[peers.SAVED :], trajectory, net


def tf_models_lamb(**changes):
    arguments = {"weight_decay_rate": 0.1, **EXCLUSIONS, **changes}
    return tf_models.LAMB(0.05, **arguments)


def lamb_of_keras(**changes):
    return keras.optimizers.Lamb(0.05, **changes)


# --- The three sources on both hosts: load, go on, compare.


@pytest.mark.parametrize("run", peers.RUNS)
def test_addons_goes_on(host, run, silent):
    path, gradients, trajectory = addons(run)
    net = peers.model(host.keras)
    optimizer = importers.optimizer_from_config(peers.config(run), host.LAMB)
    report = importers.load_state(optimizer, net, path, weights=True)
    assert list(report.mapped.values()) == peers.NAMES
    assert report.iterations == int(optimizer.iterations) == peers.SAVED
    assert not report.without_state + report.left_behind + report.remarks
    record = peers.recorded(run)
    for entry, name in zip(optimizer._entries.value, peers.NAMES, strict=True):
        for slot, kind in zip(entry.slots, "mv", strict=True):
            np.testing.assert_array_equal(array(slot), record[kind][name])
    go_on(optimizer, net, gradients, trajectory, rtol=2e-6)


def test_tf_models_goes_on(host, tmp_path, silent):
    peer = tf_models_lamb()
    path, gradients, trajectory, _ = trained(tf_keras, peer, tmp_path)
    net = peers.model(host.keras)
    optimizer = importers.optimizer_from_config(
        tf_keras.optimizers.serialize(peer), host.LAMB, **EXCLUSIONS
    )
    importers.load_state(optimizer, net, path, weights=True)
    go_on(optimizer, net, gradients, trajectory, rtol=2e-6)


def test_keras_goes_on(host, tmp_path, silent):
    peer = lamb_of_keras()
    path, gradients, trajectory, _ = trained(keras, peer, tmp_path)
    net = peers.model(host.keras)
    optimizer = importers.optimizer_from_config(
        keras.optimizers.serialize(peer), host.LAMB
    )
    assert optimizer.get_config()["epsilon"] == 1e-7
    importers.load_state(optimizer, net, path, weights=True)
    # Keras's own rounding of 1 - 0.999; see test_parity.py.
    go_on(optimizer, net, gradients, trajectory, rtol=1e-5)


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_keras_files_go_on(host, tmp_path, suffix, silent):
    weights, gradients = peers.draw()
    source, peer = peers.model(keras), lamb_of_keras()
    peers.set_values(source, weights)
    source.compile(peer, loss="mse")
    for grads in gradients[: peers.SAVED]:
        peers.step(peer, source, grads)
    path = str(tmp_path / f"model{suffix}")
    (source.save if suffix == ".keras" else source.save_weights)(path)
    net = peers.model(host.keras)
    peers.set_values(net, peers.values(source))
    optimizer = importers.optimizer_from_config(
        keras.optimizers.serialize(peer), host.LAMB
    )
    report = importers.load_state(optimizer, net, path)
    assert list(report.mapped.values())[0] == "(position 0)"
    trajectory = [peers.values(source)]
    for grads in gradients[peers.SAVED :]:
        peers.step(peer, source, grads)
        trajectory.append(peers.values(source))
    go_on(optimizer, net, gradients[peers.SAVED :], trajectory, rtol=1e-5)


@pytest.mark.parametrize("lost", ["moments", "iterations"])
def test_the_measure_sees_a_lost_state(host, lost):
    path, gradients, trajectory = addons("schedule")
    net = peers.model(host.keras)
    optimizer = importers.optimizer_from_config(
        peers.config("schedule"), host.LAMB
    )
    importers.load_state(optimizer, net, path, weights=True)
    if lost == "iterations":
        optimizer._iterations.assign(0)
    else:
        for entry in optimizer._entries.value:
            entry.slots[0].assign(tf.zeros(entry.shape))
    with pytest.raises(AssertionError, match="off by"):
        go_on(optimizer, net, gradients, trajectory, rtol=1e-2)


def test_into_a_built_optimizer_inside_a_tf_function(host, silent):
    path, gradients, trajectory = addons("schedule")
    net = peers.model(host.keras)
    optimizer = importers.optimizer_from_config(
        peers.config("schedule"), host.LAMB
    )
    optimizer.build(net.trainable_variables)

    @tf.function
    def step(grads):
        optimizer.apply_gradients(
            [
                (grads[name], v)
                for name, v in zip(
                    peers.NAMES, net.trainable_variables, strict=True
                )
            ]
        )

    step(gradients[0])
    importers.load_state(optimizer, net, path, weights=True)
    for grads in gradients:
        step({k: tf.constant(g) for k, g in grads.items()})
    problems.assert_same_displacement(
        trajectory[0], peers.values(net), trajectory[-1], len(gradients), 2e-6
    )


# --- Layouts of files.


def test_saved_model_of_tf_keras(host, tmp_path):
    net = peers.model(tf_keras)
    net.compile(tf_models_lamb(), loss="mse")
    net.fit(np.ones((2, 5)), np.ones((2, 3)), verbose=0)
    net.save(str(tmp_path / "saved"), save_format="tf")
    optimizer = host.LAMB(0.05, weight_decay=0.1)
    ours = peers.model(host.keras)
    importers.load_state(optimizer, ours, tmp_path / "saved", weights=True)
    for name, w in peers.values(net).items():
        np.testing.assert_array_equal(peers.values(ours)[name], w)


def test_folder_means_its_latest_checkpoint(host, tmp_path):
    net, peer = peers.model(tf_keras), tf_models_lamb()
    checkpoint = tf.train.Checkpoint(model=net, optimizer=peer)
    for grads in peers.draw()[1][:2]:
        peers.step(peer, net, grads)
        checkpoint.save(str(tmp_path / "ckpt"))
    optimizer = host.LAMB(0.05, weight_decay=0.1)
    report = importers.load_state(
        optimizer, peers.model(host.keras), str(tmp_path)
    )
    assert report.iterations == 2


def test_loss_scale_optimizer_of_tf_keras(host, tmp_path):
    peer = tf_keras.mixed_precision.LossScaleOptimizer(tf_models_lamb())
    path, *_ = trained(tf_keras, peer, tmp_path)
    optimizer = host.LAMB(0.05, weight_decay=0.1)
    with pytest.warns(UserWarning, match="loss scale is left behind"):
        report = importers.load_state(optimizer, peers.model(host.keras), path)
    assert report.iterations == peers.SAVED


def test_loss_scale_optimizer_of_keras(host, tmp_path):
    peer = keras.optimizers.LossScaleOptimizer(lamb_of_keras(), 1.0)
    path, _, trajectory, _ = trained(keras, peer, tmp_path)
    optimizer, net = host.LAMB(0.05, epsilon=1e-7), peers.model(host.keras)
    with pytest.warns(UserWarning, match="loss scale is left behind"):
        report = importers.load_state(optimizer, net, path, weights=True)
    assert report.iterations == peers.SAVED
    for name, w in trajectory[0].items():
        np.testing.assert_array_equal(peers.values(net)[name], w)


def test_on_two_replicas(host, replicas):
    path, gradients, trajectory = addons("schedule")
    with replicas.scope():
        net = peers.model(host.keras)
        optimizer = importers.optimizer_from_config(
            peers.config("schedule"), host.LAMB
        )
        importers.load_state(optimizer, net, path, weights=True)

    @tf.function
    def step(grads):
        # The sum over the two is the gradient.
        replicas.run(
            lambda: peers.step(
                optimizer, net, {k: g / 2.0 for k, g in grads.items()}
            )
        )

    for grads in gradients:
        step({k: tf.constant(g) for k, g in grads.items()})
    for v, name in zip(net.trainable_variables, peers.NAMES, strict=True):
        native = v.value if isinstance(v, keras.Variable) else v
        for local in replicas.experimental_local_results(native):
            problems.assert_same_displacement(
                {name: trajectory[0][name]},
                {name: local.numpy()},
                trajectory[-1],
                len(gradients),
                rtol=2e-6,
            )


@pytest.mark.parametrize("source", ["tf_models", "keras"])
def test_moving_averages(host, tmp_path, source):
    if source == "keras":
        peer = lamb_of_keras(use_ema=True)
        path, _, _, _ = trained(keras, peer, tmp_path)
        decay = 0.0
    else:
        net = peers.model(tf_keras)
        peer = ema_optimizer.ExponentialMovingAverage(tf_models_lamb())
        peer.shadow_copy(net)
        peers.step(peer, net, peers.draw()[1][0])
        checkpoint = tf.train.Checkpoint(model=net, optimizer=peer)
        path, decay = checkpoint.write(str(tmp_path / "ckpt")), 0.1
    reader = tf.train.load_checkpoint(path)
    keys = [k for k in reader.get_variable_to_shape_map() if "average" in k]
    optimizer = host.LAMB(0.05, weight_decay=decay, use_ema=True)
    importers.load_state(optimizer, peers.model(host.keras), path)
    averages = [array(a) for a in optimizer._model_variables_moving_average]
    assert all(np.abs(a).sum() > 0 for a in averages)
    if source == "tf_models":
        theirs = [reader.get_tensor(k) for k in keys]
        assert sorted(a.sum() for a in averages) == sorted(
            a.sum() for a in theirs
        )
    plain = host.LAMB(0.05, weight_decay=decay)
    with pytest.warns(UserWarning, match="averages are left behind"):
        importers.load_state(plain, peers.model(host.keras), path)


def test_no_moving_averages_to_load(host):
    optimizer = host.LAMB(use_ema=True)
    with pytest.raises(ValueError, match="no moving averages.*use_ema=False"):
        importers.load_state(
            optimizer, peers.model(host.keras), addons("defaults")[0]
        )


def test_keras_accumulation(tmp_path):
    peer = lamb_of_keras(gradient_accumulation_steps=2)
    path, gradients, trajectory, _ = trained(keras, peer, tmp_path)
    config = keras.optimizers.serialize(peer)
    net = peers.model(keras)
    optimizer = importers.optimizer_from_config(config, lamb_tf.keras.LAMB)
    importers.load_state(optimizer, net, path, weights=True)
    # Saved between two micro-steps: the half is there too.
    assert int(optimizer._iterations) == peers.SAVED == 5
    go_on(optimizer, net, gradients, trajectory, rtol=1e-5)
    with pytest.raises(ValueError, match="accumulated gradients"):
        importers.load_state(lamb_tf.keras.LAMB(), net, path)
    with pytest.raises(ValueError, match="tf_keras has no `gradient_acc"):
        importers.optimizer_from_config(config, lamb_tf.tf_keras.LAMB)


def test_updates_become_micro_steps():
    optimizer = lamb_tf.keras.LAMB(gradient_accumulation_steps=3)
    importers.load_state(optimizer, peers.model(keras), addons("defaults")[0])
    assert int(optimizer.iterations) == peers.SAVED


def test_low_precision_variables(host):
    path, _, _ = addons("defaults")
    record = peers.recorded("defaults")
    variables = [
        host.variable(w, k.replace("/", "_"), "bfloat16")
        for k, w in record["weights"][0].items()
    ]
    optimizer = host.LAMB()
    names = {v.name.split(":")[0]: v.name.split(":")[0] for v in variables}
    names = {k: k.replace("_", "/") for k in names}
    importers.load_state(optimizer, variables, path, names=names, weights=True)
    for entry, name in zip(optimizer._entries.value, peers.NAMES, strict=True):
        kept = record["weights"][peers.SAVED][name]
        np.testing.assert_array_equal(array(entry.master), kept)
        np.testing.assert_array_equal(array(entry.slots[0]), record["m"][name])


# --- What is refused; and then nothing was changed.


def untouched(optimizer):
    return not optimizer._entries.value and int(optimizer.iterations) == 0


def test_shape_mismatch(host):
    layers = host.keras.layers
    net = host.keras.Sequential(
        [
            layers.Dense(6, name="dense"),
            layers.LayerNormalization(name="norm"),
            layers.Dense(4, name="head"),
        ]
    )
    net.build((None, 5))
    optimizer = host.LAMB()
    with pytest.raises(ValueError, match=r"head/kernel.*\(6, 3\).*\(6, 4\)"):
        importers.load_state(optimizer, net, addons("defaults")[0])
    assert untouched(optimizer)


def test_a_built_optimizer_keeps_its_state_when_refused(host, tmp_path):
    net, peer = peers.model(tf_keras), tf_models_lamb()
    # The last variable gets no gradient, and so no slots.
    peer.apply_gradients(
        [(tf.ones(v.shape), v) for v in net.trainable_variables[:-1]]
    )
    checkpoint = tf.train.Checkpoint(model=net, optimizer=peer)
    path = checkpoint.write(str(tmp_path / "ckpt"))
    ours, optimizer = peers.model(host.keras), host.LAMB(0.05, weight_decay=0.1)
    peers.step(optimizer, ours, peers.draw()[1][0])
    before = [array(v) for v in optimizer.variables]
    weights = peers.values(ours)
    with pytest.raises(ValueError, match="head/bias.*allow_unmatched"):
        importers.load_state(optimizer, ours, path, weights=True)
    for v, was in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(array(v), was)
    for name, w in peers.values(ours).items():
        np.testing.assert_array_equal(w, weights[name])
    report = importers.load_state(
        optimizer, ours, path, allow_unmatched=["head/bias"]
    )
    assert [p.split("/")[-2:] for p in report.without_state] == [
        ["head", "bias"]
    ]
    assert "starts at zero" in str(report)
    assert not array(optimizer._entries.value[-1].slots[0]).any()


def test_variables_left_behind(host):
    net = peers.model(host.keras)
    optimizer, kept = host.LAMB(), net.trainable_variables[:-1]
    path, _, _ = addons("defaults")
    with pytest.raises(ValueError, match="'head/bias' in the file has no"):
        importers.load_state(optimizer, kept, path)
    assert untouched(optimizer)
    report = importers.load_state(
        optimizer, kept, path, allow_unmatched=["head/bias$"]
    )
    assert report.left_behind == ["head/bias"]
    assert "(left behind)" in str(report)


def other_names(keras_of_ours):
    return peers.model(keras_of_ours, first="first", last="second")


def test_renamed_layers(host):
    net, optimizer = other_names(host.keras), host.LAMB()
    path, _, _ = addons("defaults")
    with pytest.raises(ValueError, match="first/kernel' here has no partner"):
        importers.load_state(optimizer, net, path)
    paths = [getattr(v, "path", v.name).split(":")[0] for v in net.weights]
    names = dict(zip(paths, peers.NAMES, strict=True))
    # By the path of attributes too.
    names[paths[0]] = "model/layer_with_weights-0/kernel"
    with pytest.raises(ValueError, match="'x', which is no path"):
        importers.load_state(optimizer, net, path, names={"x": "y"})
    with pytest.raises(ValueError, match="'y', which 0 variables"):
        importers.load_state(optimizer, net, path, names={paths[0]: "y"})
    assert untouched(optimizer)
    report = importers.load_state(optimizer, net, path, names=names)
    assert list(report.mapped.values()) == peers.NAMES


def test_ambiguous_names(host, tmp_path):
    w = [tf.Variable([1.0, 2.0], name="w") for _ in range(2)]
    peer = tf_models_lamb()
    peer.apply_gradients([(tf.ones([2]), v) for v in w])
    path = tf.train.Checkpoint(w=w, optimizer=peer).write(str(tmp_path / "c"))
    ours = [host.variable([1.0, 2.0], name) for name in ("x", "y")]
    optimizer = host.LAMB(0.05, weight_decay=0.1)
    with pytest.raises(ValueError, match="'x' here has no .*file: 'w', 'w'."):
        importers.load_state(optimizer, ours, path)
    report = importers.load_state(
        optimizer, ours, path, names={"x": "w/1", "y": "w/0"}
    )
    assert report.mapped == {"x": "w", "y": "w"}


def test_several_optimizers(host, tmp_path):
    other, w = tf_models_lamb(), tf.Variable([1.0, 2.0], name="w")
    other.apply_gradients([(tf.ones([2]), w)])
    path, *_ = trained(tf_keras, tf_models_lamb(), tmp_path, other=other, w=w)
    optimizer, net = host.LAMB(0.05, weight_decay=0.1), peers.model(host.keras)
    with pytest.raises(
        ValueError, match="'optimizer', 'other'.*optimizer_path"
    ):
        importers.load_state(optimizer, net, path)
    with pytest.raises(ValueError, match="0 optimizers .* at 'x'"):
        importers.load_state(optimizer, net, path, optimizer_path="x")
    importers.load_state(optimizer, net, path, optimizer_path="optimizer")


def test_no_optimizer(host, tmp_path):
    net, optimizer = peers.model(host.keras), host.LAMB()
    path = tf.train.Checkpoint(model=net).write(str(tmp_path / "ckpt"))
    with pytest.raises(ValueError, match="0 optimizers.*after its first step"):
        importers.load_state(optimizer, net, path)
    with pytest.raises(ValueError, match="No checkpoint at 'nowhere'"):
        importers.load_state(optimizer, net, "nowhere")
    with pytest.raises(ValueError, match="No checkpoint in the folder"):
        importers.load_state(optimizer, net, os.fspath(tmp_path / ".."))
    assert untouched(optimizer)


def test_our_own_checkpoint(host, tmp_path):
    net, optimizer = peers.model(host.keras), host.LAMB()
    peers.step(optimizer, net, peers.draw()[1][0])
    checkpoint = tf.train.Checkpoint(optimizer=optimizer)
    path = checkpoint.write(str(tmp_path / "ckpt"))
    with pytest.raises(ValueError, match="written by lamb_tf. Restore it"):
        importers.load_state(host.LAMB(), net, path)


def test_a_checkpoint_of_adam(host, tmp_path):
    path, *_ = trained(tf_keras, tf_keras.optimizers.legacy.Adam(), tmp_path)
    with pytest.warns(UserWarning, match="no weight decay, as every LAMB"):
        importers.load_state(host.LAMB(), peers.model(host.keras), path)
    path, *_ = trained(keras, keras.optimizers.Adam(), tmp_path)
    with pytest.warns(UserWarning, match="called 'adam"):
        importers.load_state(host.LAMB(), peers.model(host.keras), path)


def test_keras_files_refused(host, tmp_path):
    source, optimizer = peers.model(keras), host.LAMB()
    net = peers.model(host.keras)

    def refused(path, match, **more):
        with pytest.raises(ValueError, match=match):
            importers.load_state(optimizer, net, str(path), **more)
        assert untouched(optimizer)

    source.compile(keras.optimizers.Adam(), loss="mse")
    source.save(tmp_path / "adam.keras")
    refused(tmp_path / "adam.keras", "compiled with 'Adam'")
    source.compile(lamb_of_keras(use_ema=True), loss="mse")
    source.fit(np.ones((2, 5)), np.ones((2, 3)), verbose=0)
    source.save(tmp_path / "ema.keras")
    refused(tmp_path / "ema.keras", "use_ema=True")
    source.save_weights(tmp_path / "ema.weights.h5")
    refused(tmp_path / "ema.weights.h5", "more of its optimizer than two")
    source.compile(lamb_of_keras(), loss="mse")
    source.fit(np.ones((2, 5)), np.ones((2, 3)), verbose=0)
    path = tmp_path / "lamb.keras"
    source.save(path)
    refused(path, "load_weights", weights=True)
    refused(path, "matches by position only", names={"a": "b"})
    refused(path, "no paths", optimizer_path="optimizer")
    peers.model(keras).save_weights(tmp_path / "none.weights.h5")
    refused(tmp_path / "none.weights.h5", "holds no optimizer")
    refused(tmp_path / "nothing.keras", "is no file of Keras 3")
    with pytest.raises(ValueError, match="6 variables, and 5 are given"):
        importers.load_state(optimizer, net.trainable_variables[:-1], path)


def test_wrong_optimizer(host):
    net, path = peers.model(host.keras), addons("defaults")[0]
    with pytest.raises(ValueError, match="must be a LAMB of lamb_tf.*Adam"):
        importers.load_state(host.keras.optimizers.Adam(), net, path)
    with pytest.raises(
        ValueError, match="build the model first|not yet been created"
    ):
        importers.load_state(host.LAMB(), host.keras.Sequential(), path)
    optimizer = host.LAMB()
    optimizer.build(net.trainable_variables)
    with pytest.raises(ValueError, match="built for other variables"):
        importers.load_state(optimizer, peers.model(host.keras), path)


def test_other_scalars_are_said(host):
    optimizer = host.LAMB(0.5, beta_2=0.99)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = importers.load_state(
            optimizer, peers.model(host.keras), addons("decay")[0]
        )
    said = " ".join(str(w.message) for w in caught)
    for name in ("learning_rate", "beta_1", "beta_2", "weight_decay", "decay"):
        assert f"{name} is " in said
    assert len(report.remarks) == 5
    assert float(optimizer.learning_rate) == 0.5


def test_keras_3_alone_is_enough():
    code = (
        "import sys, json; sys.modules['tf_keras'] = None\n"
        "import keras, tensorflow as tf\n"
        "from lamb_tf import importers\n"
        f"path = {str(peers.DATA / 'addons_defaults')!r}\n"
        "config = json.load(open(path + '.json'))\n"
        "o = importers.optimizer_from_config(config)\n"
        "s = {'dense/kernel': [5, 6], 'dense/bias': [6], 'norm/gamma': [6],"
        " 'norm/beta': [6], 'head/kernel': [6, 3], 'head/bias': [3]}\n"
        "w = [tf.Variable(tf.ones(d), name=n) for n, d in s.items()]\n"
        "print(importers.load_state(o, w, path).iterations)\n"
        "found = {'official', 'tensorflow_addons'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == peers.SAVED
