"""LAMB beside its peers, step by step, and where they part."""

import jax
import keras
import numpy as np
import optax
import pytest
import tensorflow as tf
import tf_keras
from official.modeling.optimization import lamb as tf_models

from tests.lamb_tf import peers, problems

ARGUMENTS = {
    "weight_decay": 0.1,
    "exclude_from_weight_decay": ["bias", "norm"],
    "exclude_from_layer_adaptation": ["bias"],
}
# As in data/write_addons.py; made anew for each Keras.
ADDONS = {
    "defaults": lambda keras: {},
    "schedule": lambda keras: {
        "learning_rate": keras.optimizers.schedules.PolynomialDecay(
            0.05, 12, 0.001
        ),
        **ARGUMENTS,
    },
    "decay": lambda keras: {
        "learning_rate": keras.optimizers.schedules.InverseTimeDecay(
            0.02, 1, 0.25
        ),
        "beta_1": 0.875,
        "beta_2": 0.96875,
        "epsilon": 1e-3,
        "weight_decay": 0.05,
        "exclude_from_weight_decay": ["norm/"],
        "clipvalue": 0.05,
    },
}


def follow(optimizer, net, trajectory, gradients, rtol, first=0):
    """Asserts that each step of ours ends where the peer's did."""
    start = trajectory[0]
    for t, grads in enumerate(gradients):
        peers.step(optimizer, net, grads)
        problems.assert_same_displacement(
            start, peers.values(net), trajectory[t + 1], t + 1, rtol
        )


def beside(host, optimizer, peer, peer_net, gradients, weights, rtol):
    """Trains both from the same weights and compares every step."""
    peers.set_values(peer_net, weights)
    trajectory = [weights]
    for grads in gradients:
        peers.step(peer, peer_net, grads)
        trajectory.append(peers.values(peer_net))
    net = peers.model(host.keras)
    peers.set_values(net, weights)
    follow(optimizer, net, trajectory, gradients, rtol)


@pytest.mark.parametrize("run", peers.RUNS)
def test_addons(host, run):
    record = peers.recorded(run)
    net = peers.model(host.keras)
    peers.set_values(net, record["weights"][0])
    optimizer = host.LAMB(**ADDONS[run](host.keras))
    follow(optimizer, net, record["weights"], record["gradients"], rtol=2e-6)


def test_the_measure_refuses_a_decay_outside_the_ratio(host):
    record = peers.recorded("schedule")
    net = peers.model(host.keras)
    peers.set_values(net, record["weights"][0])
    arguments = ADDONS["schedule"](host.keras)
    optimizer = host.LAMB(**{**arguments, "weight_decay": 0.0})
    with pytest.raises(AssertionError, match="kernel: off by"):
        follow(
            optimizer, net, record["weights"], record["gradients"], rtol=1e-3
        )


def tf_models_lamb(**changes):
    arguments = {"weight_decay_rate": 0.1, **ARGUMENTS, **changes}
    del arguments["weight_decay"]
    return tf_models.LAMB(0.05, **arguments)


def test_tf_models(host):
    weights, gradients = peers.draw()
    beside(
        host,
        host.LAMB(0.05, **ARGUMENTS),
        tf_models_lamb(),
        peers.model(tf_keras),
        gradients,
        weights,
        rtol=2e-6,
    )


def test_tf_models_with_sparse_gradients(host):
    rng = np.random.default_rng(0)
    start = rng.normal(0, 0.5, (7, 4)).astype("float32")
    ours, theirs = host.variable(start, "table"), tf.Variable(start)
    optimizer, peer = host.LAMB(0.05, weight_decay=0.1), tf_models_lamb()
    for t in range(5):
        gradient = tf.IndexedSlices(
            tf.constant(rng.normal(0, 0.1, (4, 4)), tf.float32),
            tf.constant([2, 5, 2, 0]),
            tf.constant([7, 4]),
        )
        optimizer.apply_gradients([(gradient, ours)])
        peer.apply_gradients([(gradient, theirs)])
        problems.assert_same_displacement(
            {"table": start},
            {"table": np.array(tf.convert_to_tensor(ours))},
            {"table": theirs.numpy()},
            t + 1,
            rtol=2e-6,
        )


def test_tf_models_reads_an_empty_list_as_the_decay_list(host):
    """Ours adapts every variable for `[]`."""
    weights, gradients = peers.draw()

    def against(**changes):
        beside(
            host,
            host.LAMB(0.05, **{**ARGUMENTS, **changes}),
            tf_models_lamb(exclude_from_layer_adaptation=[]),
            peers.model(tf_keras),
            gradients,
            weights,
            rtol=2e-6,
        )

    against(exclude_from_layer_adaptation=None)
    with pytest.raises(AssertionError, match="bias: off by"):
        against(exclude_from_layer_adaptation=[])


def optax_lamb(weights, gradients, rate, **arguments):
    """Returns the weights after each step of `optax.lamb`."""
    optimizer = optax.lamb(rate, **arguments)
    params = {k: jax.numpy.asarray(w) for k, w in weights.items()}
    state = optimizer.init(params)
    trajectory = [weights]
    for grads in gradients:
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        trajectory.append({k: np.asarray(w) for k, w in params.items()})
    return trajectory


# optax and Keras take the float32 1 - 0.999f from the powers and 1 - 0.999
# from the moments, which is 6.5e-6 of their first step; with betas that
# float32 holds exactly they take the same.
BETAS = pytest.mark.parametrize(
    ("betas", "rtol"), [((0.875, 0.96875), 1e-6), ((0.9, 0.999), 1e-5)], ids=str
)


@BETAS
def test_optax(host, betas, rtol):
    weights, gradients = peers.draw()
    # A zero-initialised variable, as biases are.
    weights["head/bias"] = np.zeros_like(weights["head/bias"])
    decayed = {k: "bias" not in k and "norm" not in k for k in weights}
    trajectory = optax_lamb(
        weights,
        gradients,
        optax.linear_schedule(0.05, 0.001, 12),
        b1=betas[0],
        b2=betas[1],
        weight_decay=0.1,
        mask=decayed,
    )
    schedule = host.keras.optimizers.schedules.PolynomialDecay(0.05, 12, 0.001)
    # optax's mask is for the decay: what it leaves out is adapted.
    optimizer = host.LAMB(
        schedule,
        *betas,
        **{**ARGUMENTS, "exclude_from_layer_adaptation": []},
    )
    net = peers.model(host.keras)
    peers.set_values(net, weights)
    follow(optimizer, net, trajectory, gradients, rtol=rtol)


@BETAS
def test_keras_lamb_without_decay(host, betas, rtol):
    weights, gradients = peers.draw()
    beside(
        host,
        host.LAMB(0.05, *betas, epsilon=1e-7),
        keras.optimizers.Lamb(0.05, *betas),
        peers.model(keras),
        gradients,
        weights,
        rtol=rtol,
    )


def test_keras_lamb_decays_outside_the_ratio(host):
    weights, gradients = peers.draw()
    with pytest.raises(AssertionError, match="kernel: off by"):
        beside(
            host,
            host.LAMB(0.05, epsilon=1e-7, weight_decay=0.1),
            keras.optimizers.Lamb(0.05, weight_decay=0.1),
            peers.model(keras),
            gradients,
            weights,
            rtol=1e-3,
        )


def test_keras_lamb_adapts_what_it_does_not_decay():
    weights, gradients = peers.draw()
    ends = []
    for names in ([], ["bias"]):
        net = peers.model(keras)
        peers.set_values(net, weights)
        peer = keras.optimizers.Lamb(0.05)
        peer.exclude_from_weight_decay(var_names=names)
        for grads in gradients:
            peers.step(peer, net, grads)
        ends.append(peers.values(net))
    for name in peers.NAMES:
        np.testing.assert_array_equal(ends[0][name], ends[1][name])
