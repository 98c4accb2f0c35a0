"""Replicas on logical CPUs: the same weights as on one device."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.lamb_tf import replicated
from tests.lamb_tf.conftest import Mirrored
from tests.lamb_tf.models import fit, model_of, optimizer_of, weights_of

# Two roundings of weights of size 1.
ROUNDINGS = {"rtol": 2.4e-7, "atol": 2.4e-7}


def make(host, name, **arguments):
    return lambda: getattr(host, name)(0.02, weight_decay=0.1, **arguments)


@functools.cache
def alone(host, name):
    one_device = tf.distribute.get_strategy()
    return replicated.Loop(one_device, host, make(host, name)).train()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("LAMB", 1),
        ("LARS", 2),
        ("LAMB", 4),
        pytest.param("LAMB", 2, marks=pytest.mark.slow),
        pytest.param("LARS", 4, marks=pytest.mark.slow),
    ],
)
def test_a_loop_on_replicas_ends_where_one_device_does(
    host, mirrored, name, count
):
    loop = replicated.Loop(mirrored(count), host, make(host, name))
    replicated.assert_same(alone(host, name), loop.train(), **ROUNDINGS)
    ratios = {k: float(v) for k, v in loop.optimizer.trust_ratios.items()}
    assert list(ratios) == list(replicated.SHAPES)
    assert 1.0 not in ratios.values()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("LAMB", 2),
        pytest.param("LARS", 2, marks=pytest.mark.slow),
        pytest.param("LAMB", 4, marks=pytest.mark.slow),
        pytest.param("LARS", 4, marks=pytest.mark.slow),
    ],
)
def test_fit_on_replicas_ends_where_one_device_does(
    host, mirrored, name, count
):
    with mirrored(count).scope():
        model = model_of(host, optimizer_of(host, name))
    one = model_of(host, optimizer_of(host, name))
    fit(model, 2)
    fit(one, 2)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 8
    for a, b in zip(weights_of(one), weights_of(model), strict=True):
        np.testing.assert_allclose(b, a, **ROUNDINGS)


def opposed(strategy, host, gradients, build=True, **arguments):
    """Returns the weights after steps with a gradient for each replica."""
    with strategy.scope():
        w = host.variable(tf.constant([3.0, 4.0]), "w")
        optimizer = host.LAMB(0.1, weight_decay=0.1, **arguments)
        if build:
            optimizer.build([w])

    @tf.function
    def step(grads):
        def replica():
            context = tf.distribute.get_replica_context()
            grad = tf.gather(grads, context.replica_id_in_sync_group)
            optimizer.apply_gradients([(grad, w)])

        strategy.run(replica)

    for grads in gradients:
        step(tf.constant(grads, tf.float32))
    iterations = tf.convert_to_tensor(optimizer.iterations)
    assert int(iterations) == len(gradients)
    return np.array(tf.convert_to_tensor(w))


@pytest.mark.parametrize(
    "clip",
    [{"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {"clipvalue": 0.5}],
    ids=str,
)
def test_gradients_are_clipped_after_the_sum(host, replicas, clip):
    # Opposed gradients: the sum is small, each of them is large.
    pairs = [[[9.0, 0.5], [-9.0, 0.25]], [[4.0, -3.0], [-4.5, 3.5]]]
    sums = [[np.sum(pair, axis=0)] for pair in pairs]
    # A large epsilon lets the size of the gradient through.
    clip = {**clip, "epsilon": 0.1}
    one_device = tf.distribute.get_strategy()
    np.testing.assert_allclose(
        opposed(replicas, host, pairs, **clip),
        opposed(one_device, host, sums, **clip),
        rtol=2.4e-7,
    )


def test_slots_made_inside_a_step_on_replicas(host, replicas):
    pairs = [[[1.0, 0.5], [2.0, 0.25]], [[4.0, -3.0], [-4.5, 3.5]]]
    np.testing.assert_array_equal(
        opposed(replicas, host, pairs, build=False),
        opposed(replicas, host, pairs),
    )


def test_an_eager_loop_on_replicas(host, replicas):
    loop = replicated.Loop(
        replicas, host, make(host, "LAMB"), wrap=replicated.wrap_eager
    )
    replicated.assert_same(alone(host, "LAMB"), loop.train(), **ROUNDINGS)


@pytest.mark.slow
def test_fit_run_eagerly_on_replicas(host, replicas):
    with replicas.scope():
        model = model_of(host, run_eagerly=True)
    one = model_of(host)
    fit(model, 1, rows=16)
    fit(one, 1, rows=16)
    for a, b in zip(weights_of(one), weights_of(model), strict=True):
        np.testing.assert_allclose(b, a, **ROUNDINGS)


def test_one_device_strategy(host, two_cpus):
    with tf.distribute.OneDeviceStrategy(two_cpus[1]).scope():
        model = model_of(host)
    one = model_of(host)
    fit(model, 1, rows=16)
    fit(one, 1, rows=16)
    for a, b in zip(weights_of(one), weights_of(model), strict=True):
        np.testing.assert_allclose(b, a, **ROUNDINGS)


@pytest.mark.parametrize("wrap", [replicated.wrap_eager, tf.function])
def test_no_strategy_and_weights_on_several_devices(host, cpus, wrap):
    start = [tf.constant([[1.0, 2.0], [3.0, 4.0]]) + i for i in range(2)]

    def train(devices):
        variables = []
        for i, device in enumerate(devices):
            with tf.device(device):
                variables.append(host.variable(start[i], f"w{i}"))
        optimizer = host.LAMB(0.1)

        def step():
            grads = [tf.ones([2, 2]), tf.constant([[1.0, -1.0], [2.0, 0.5]])]
            optimizer.apply_gradients(zip(grads, variables, strict=True))

        step = wrap(step)
        for _ in range(2):
            step()
        return [np.array(tf.convert_to_tensor(v)) for v in variables]

    np.testing.assert_array_equal(
        train([cpus[0], cpus[3]]), train([cpus[0], cpus[0]])
    )


def test_update_without_a_merge_call(host, cpus):
    """GPUs under XLA have no cross-replica context within a step."""
    strategy = Mirrored(cpus[:2])
    strategy.extended._use_merge_call = lambda: False
    loop = replicated.Loop(strategy, host, make(host, "LAMB"))
    replicated.assert_same(alone(host, "LAMB"), loop.train(), **ROUNDINGS)


@pytest.mark.parametrize("name", ["LAMB", "SGD"])
def test_xla_compiles_no_step_for_several_cpus(host, replicas, name):
    """As `compile(jit_compile=True)` asks for; `"auto"` is tested above.

    The documents say so: whoever sees this fail can say better.
    """
    optimizers = {"LAMB": host.LAMB, "SGD": host.keras.optimizers.SGD}
    loop = replicated.Loop(
        replicas,
        host,
        lambda: optimizers[name](0.01),
        wrap=replicated.wrap_xla,
    )
    # Not with any optimizer: XLA finds variables of another device.
    with pytest.raises(tf.errors.InvalidArgumentError, match="located in"):
        loop.train()
