"""Both optimizers at work: fit, checkpoints, replicas, accumulation."""

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf import problems
from tests.lamb_tf.conftest import HOSTS

X = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
Y = X @ np.arange(6, dtype=np.float32)[:, None]


def model_of(host, **compile_arguments):
    host.keras.utils.set_random_seed(0)
    layers = host.keras.layers
    model = host.keras.Sequential(
        [
            layers.Dense(8, activation="relu"),
            layers.LayerNormalization(),
            layers.Dense(1),
        ]
    )
    model.build((None, 6))
    optimizer = host.LAMB(
        WarmupPolynomialDecay(0.02, 2, 60),
        weight_decay=0.01,
        exclude_from_weight_decay=["bias", "gamma", "beta"],
        global_clipnorm=1.0,
    )
    model.compile(optimizer=optimizer, loss="mse", **compile_arguments)
    return model


def fit(model, epochs):
    history = model.fit(X, Y, 8, epochs, shuffle=False, verbose=0)
    return history.history["loss"]


def weights_of(model):
    return [np.array(w) for w in model.get_weights()]


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


def test_fit_with_an_average_of_the_weights(host):
    model = model_of(host)
    model.compile(
        optimizer=host.LAMB(0.01, use_ema=True, ema_momentum=0.9999),
        loss="mse",
    )
    before = weights_of(model)
    fit(model, 2)
    for a, b in zip(before, weights_of(model), strict=True):
        np.testing.assert_allclose(a, b, atol=0.3)
        assert np.linalg.norm(b) >= 0.5 * np.linalg.norm(a)


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


def train_on(strategy, host, gradients, build=True, **arguments):
    """Returns the weights after some steps; a step has one gradient each."""
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
    value = w.value if host.name == "keras" else w
    first, *others = (
        part.numpy() for part in strategy.experimental_local_results(value)
    )
    for other in others:
        np.testing.assert_array_equal(first, other)
    return first


@pytest.mark.parametrize(
    "clip",
    [{}, {"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {"clipvalue": 0.5}],
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
        train_on(replicas, host, pairs, **clip),
        train_on(one_device, host, sums, **clip),
        rtol=1e-6,
    )


def test_slots_made_inside_a_step_on_replicas(replicas):
    # Keras 3 wants its optimizers built outside; tf_keras builds here.
    host = HOSTS["tf_keras"]
    pairs = [[[1.0, 0.5], [2.0, 0.25]], [[4.0, -3.0], [-4.5, 3.5]]]
    np.testing.assert_array_equal(
        train_on(replicas, host, pairs, build=False),
        train_on(replicas, host, pairs),
    )


def test_fit_on_replicas(host, replicas):
    with replicas.scope():
        model = model_of(host)
    alone = model_of(host)
    fit(model, 2)
    fit(alone, 2)
    for a, b in zip(weights_of(model), weights_of(alone), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_one_device_strategy(host, two_cpus):
    with tf.distribute.OneDeviceStrategy(two_cpus[1]).scope():
        model = model_of(host)
    losses = fit(model, 4)
    assert losses[-1] < losses[0]


def test_accumulation_counts_updates(two_cpus):
    host = HOSTS["keras"]
    schedule = WarmupPolynomialDecay(0.1, 2, 8)
    w, plain = (host.variable([3.0, 4.0], n) for n in ("w", "plain"))
    accumulating = host.LAMB(schedule, gradient_accumulation_steps=2)
    optimizer = host.LAMB(schedule)
    for g in ([1.0, 0.0], [0.0, 1.0], [2.0, 1.0]):
        g = tf.constant(g)
        optimizer.apply_gradients([(g, plain)])
        accumulating.apply_gradients([(0.5 * g, w)])
        accumulating.apply_gradients([(1.5 * g, w)])
    np.testing.assert_allclose(w.numpy(), plain.numpy(), rtol=1e-6)
