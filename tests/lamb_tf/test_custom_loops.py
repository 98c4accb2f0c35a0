"""What users do with an optimizer in loops of their own."""

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf.programs import CHOICES
from tests.lamb_tf import models, problems, reference
from tests.lamb_tf.conftest import HOSTS

ALGORITHMS = ["LAMB", "LARS"]
REFERENCES = {"LAMB": reference.lamb, "LARS": reference.lars}
SHAPES = {"kernel": (4, 3), "bias": (3,)}


def variables_of(host, weights):
    return {k: host.variable(w, k) for k, w in weights.items()}


def step(optimizer, variables, gradients):
    optimizer.apply_gradients(
        [(tf.constant(gradients[k]), v) for k, v in variables.items()]
    )


def values_of(variables):
    return {k: np.array(tf.convert_to_tensor(v)) for k, v in variables.items()}


def train_at(host, algorithm, rates, set_rate, learning_rate, **arguments):
    """Trains a step at each rate, which `set_rate(optimizer, rate)` sets."""
    weights, gradients = problems.make(shapes=SHAPES, steps=len(rates))
    variables = variables_of(host, weights)
    optimizer = getattr(host, algorithm)(learning_rate, **arguments)
    for rate, grads in zip(rates, gradients, strict=True):
        set_rate(optimizer, rate)
        step(optimizer, variables, grads)
    should = REFERENCES[algorithm](weights, gradients, rates)
    problems.assert_same_displacement(
        weights, values_of(variables), should, len(rates)
    )
    return optimizer


RATES = [0.1, 0.1, 0.02, 0.3, 0.0, 0.05]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learning_rate_set_between_eager_steps(host, algorithm):
    def assign(optimizer, rate):
        optimizer.learning_rate = rate

    train_at(host, algorithm, RATES, assign, 0.5)
    numpy_rates = list(np.float32(RATES))
    train_at(host, algorithm, numpy_rates, assign, 0.5)

    def assign_variable(optimizer, rate):
        optimizer.learning_rate.assign(rate)

    train_at(host, algorithm, RATES, assign_variable, 0.5)


def test_learning_rate_set_between_steps_of_a_graph(host):
    w = host.variable([1.0, 1.0], "w")
    optimizer = host.LAMB(0.5)
    graph = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
    ends = []
    for rate in (0.5, 0.0, 0.1):
        optimizer.learning_rate = rate
        graph(tf.ones([2]))
        ends.append(float(w[0]))
    # Half is left, then nothing moves, then a tenth of what is left goes.
    np.testing.assert_allclose(ends, [0.5, 0.5, 0.45], rtol=1e-5)


def test_learning_rate_by_a_function(host):
    current = {}
    optimizer = train_at(
        host,
        "LAMB",
        RATES,
        lambda optimizer, rate: current.update(rate=rate),
        lambda: current.get("rate", 0.5),
    )
    assert len(optimizer._programs.value._by_variables) == 1


def test_learning_rate_by_a_variable_in_a_graph(host):
    rate = tf.Variable(0.5)
    w = host.variable([1.0, 1.0], "w")
    optimizer = host.LAMB(lambda: rate)
    graph = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
    ends = []
    for value in (0.5, 0.0, 0.1):
        rate.assign(value)
        graph(tf.ones([2]))
        ends.append(float(w[0]))
    np.testing.assert_allclose(ends, [0.5, 0.5, 0.45], rtol=1e-5)


@pytest.mark.parametrize("of", HOSTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_schedule_of_either_keras(host, of, algorithm):
    schedule = HOSTS[of].keras.optimizers.schedules.ExponentialDecay(
        0.1, 2, 0.5, staircase=True
    )
    weights, gradients = problems.make(shapes=SHAPES, steps=5)
    optimizer = getattr(host, algorithm)(schedule)
    ends = problems.train(host, optimizer, weights, gradients, tf.function)
    rates = [0.1 * 0.5 ** (t // 2) for t in range(5)]
    should = REFERENCES[algorithm](weights, gradients, rates)
    problems.assert_same_displacement(weights, ends, should, 5)


def test_a_schedule_set_later(host):
    schedules = [h.keras.optimizers.schedules for h in HOSTS.values()]
    for schedule in schedules:
        w = host.variable([1.0, 1.0], "w")
        optimizer = host.LAMB(0.5)
        optimizer.apply_gradients([(tf.ones([2]), w)])
        optimizer.learning_rate = schedule.PiecewiseConstantDecay(
            [1], [0.25, 0.125]
        )
        for _ in range(2):
            optimizer.apply_gradients([(tf.ones([2]), w)])
        should = 0.5 * 0.75 * 0.875
        np.testing.assert_allclose(w.numpy(), should, rtol=1e-5)
        with pytest.raises(TypeError, match="not settable"):
            optimizer.learning_rate = 0.5


def test_clipping_set_between_eager_steps(host):
    arguments = {"exclude_from_layer_adaptation": ["."], "epsilon": 1.0}
    w = host.variable([0.0], "w")
    optimizer = host.LAMB(1.0, beta_1=0.0, beta_2=0.0, **arguments)
    moved = []
    for clip in (None, 1.0, None, 3.0):
        optimizer.clipnorm = clip
        before = float(w[0])
        optimizer.apply_gradients([(tf.constant([4.0]), w)])
        moved.append(before - float(w[0]))
    # g / (|g| + epsilon)
    np.testing.assert_allclose(moved, [0.8, 0.5, 0.8, 0.75], rtol=1e-6)


def test_two_optimizers_on_one_model(host):
    """Each has slots and a count of its own."""
    weights, gradients = problems.make(shapes=SHAPES, steps=4)
    variables = variables_of(host, weights)
    optimizers = [host.LAMB(0.1, weight_decay=0.1), host.LARS(0.1)]
    for grads in gradients:
        for optimizer in optimizers:
            step(optimizer, variables, grads)
    assert [int(o.iterations) for o in optimizers] == [4, 4]

    # The reference in turns: each is one step of a problem of its own, so
    # only the moments are compared, which do not depend on the weights.
    m = {k: np.zeros(w.shape) for k, w in weights.items()}
    for grads in gradients:
        m = {k: 0.9 * m[k] + 0.1 * np.float64(grads[k]) for k in m}
    for optimizer in optimizers:
        for k, entry in zip(m, optimizer._entries.value, strict=True):
            slot = entry.slots[0].numpy()
            np.testing.assert_allclose(slot, m[k], rtol=1e-5, atol=1e-7)


def test_an_optimizer_for_each_half_of_a_model(host):
    weights, gradients = problems.make(shapes=SHAPES, steps=4)
    variables = variables_of(host, weights)
    optimizers = {"kernel": host.LAMB(0.1), "bias": host.LARS(0.2)}
    for grads in gradients:
        for k, optimizer in optimizers.items():
            step(optimizer, {k: variables[k]}, grads)
    for k, algorithm, rate in [("kernel", "LAMB", 0.1), ("bias", "LARS", 0.2)]:
        should = REFERENCES[algorithm](
            {k: weights[k]}, [{k: g[k]} for g in gradients], [rate] * 4
        )
        problems.assert_same_displacement(
            {k: weights[k]}, values_of(variables), should, 4
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradients_on_alternate_steps(host, algorithm, mode):
    """`t` is the optimizer's count of updates, as in Keras.

    A variable without a gradient keeps its weights and its moments.
    """
    weights, gradients = problems.make(shapes=SHAPES, steps=6)
    variables = variables_of(host, weights)
    optimizer = getattr(host, algorithm)(0.1, weight_decay=0.1)

    def both(grads):
        optimizer.apply_gradients([(grads[k], v) for k, v in variables.items()])

    def kernel_alone(grads):
        optimizer.apply_gradients(
            [(grads["kernel"], variables["kernel"]), (None, variables["bias"])]
        )

    for t, grads in enumerate(gradients):
        run = kernel_alone if t % 2 else both
        run = tf.function(run) if mode == "graph" else run
        run({k: tf.constant(g) for k, g in grads.items()})
    should = alternating(algorithm, weights, gradients)
    problems.assert_same_displacement(weights, values_of(variables), should, 6)
    assert int(optimizer.iterations) == 6


def alternating(algorithm, weights, gradients):
    """Returns the weights where "bias" moves at steps 1, 3, 5 alone."""
    should = REFERENCES[algorithm](
        weights, gradients, [0.1] * 6, weight_decay=0.1
    )
    w = np.float64(weights["bias"])
    m, v = np.zeros_like(w), np.zeros_like(w)
    for index in (0, 2, 4):
        t, g = index + 1, np.float64(gradients[index]["bias"])
        if algorithm == "LAMB":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
            u = u + 0.1 * w
        else:
            u = m = 0.9 * m + 0.1 * (g + 0.1 * w)
        w = w - 0.1 * np.linalg.norm(w) / np.linalg.norm(u) * u
    return {**should, "bias": w}


def test_gradients_that_come_and_go_bring_no_trace_each(host):
    """Of many variables any subset may have gradients, as in a mixture."""
    names = [f"v{i}" for i in range(8)]
    variables = {k: host.variable(tf.ones([3, 2]), k) for k in names}
    optimizer = host.LAMB(0.01)
    optimizer.build(list(variables.values()))
    programs = optimizer._programs.value
    subsets = list(itertools.combinations(names, 4))
    moved = dict.fromkeys(names, 0)
    for subset in subsets:
        optimizer.apply_gradients(
            [(tf.ones([3, 2]), variables[k]) for k in subset]
        )
        moved = {k: n + (k in subset) for k, n in moved.items()}
    assert len(programs._by_variables) <= CHOICES
    assert programs.trace_count <= len(names)
    assert int(optimizer.iterations) == len(subsets) == 70
    assert set(moved.values()) == {35}
    for variable in variables.values():
        # Each step takes 1% of what is there.
        np.testing.assert_allclose(variable.numpy(), 0.99**35, rtol=1e-3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("jit_compile", [None, True], ids=["graph", "xla"])
def test_scalars_and_empty_variables(host, algorithm, jit_compile):
    def run(step):
        return tf.function(step, jit_compile=jit_compile)

    weights = {
        "scalar": np.float32(-2.0),
        "one": np.ones([1], np.float32),
        "empty": np.zeros([0, 3], np.float32),
        "bias": np.float32([3.0, 4.0]),
    }
    gradients = [
        {k: np.full(w.shape, 0.5, np.float32) for k, w in weights.items()}
    ] * 3
    optimizer = getattr(host, algorithm)(
        0.1, weight_decay=0.1, global_clipnorm=100.0
    )
    ends = problems.train(host, optimizer, weights, gradients, run)
    should = REFERENCES[algorithm](
        weights, gradients, [0.1] * 3, weight_decay=0.1
    )
    assert ends.pop("empty").shape == (0, 3)
    should.pop("empty")
    starts = {k: weights[k] for k in ends}
    problems.assert_same_displacement(starts, ends, should, 3)
    assert float(optimizer.trust_ratios["empty"]) == 1.0
    assert len(optimizer.describe().splitlines()) == 5


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_an_empty_variable_under_other_norms(host, norm):
    w = host.variable(np.zeros([0, 3], np.float32), "w")
    other = host.variable([1.0], "other")
    optimizer = host.LAMB(0.1, norm=norm)
    optimizer.apply_gradients([(tf.zeros([0, 3]), w), (tf.ones([1]), other)])
    assert np.isfinite(other.numpy()).all()
    assert float(optimizer.trust_ratios["w"]) == 1.0


def test_a_zero_gradient_without_epsilon(host, run):
    """`0 / 0` is no step; the paper, whose epsilon is above 0, is silent."""
    w = host.variable([1.0, 2.0], "w")
    optimizer = host.LAMB(0.1, epsilon=0.0)
    graph = run(lambda g: optimizer.apply_gradients([(g, w)]))
    graph(tf.constant([0.0, 0.0]))
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])
    graph(tf.constant([1.0, 0.0]))
    moved = np.sqrt(5.0) * 0.1
    np.testing.assert_allclose(w.numpy(), [1.0 - moved, 2.0], rtol=1e-5)


def test_variables_that_came_later_are_refused(host):
    w, later = (host.variable([1.0], name) for name in ("w", "later"))
    optimizer = host.LAMB(0.1)
    optimizer.apply_gradients([(tf.ones([1]), w)])
    with pytest.raises(ValueError, match="(?s)Unknown variable.*new optimizer"):
        optimizer.apply_gradients([(tf.ones([1]), w), (tf.ones([1]), later)])
    # A second build changes nothing, as in Keras.
    optimizer.build([w, later])
    optimizer.apply_gradients([(tf.ones([1]), w)])
    assert int(optimizer.iterations) == 2
    fresh = host.LAMB.from_config(optimizer.get_config())
    fresh.apply_gradients([(tf.ones([1]), w), (tf.ones([1]), later)])
    assert list(fresh.trust_ratios) == ["w", "later"]


def test_frozen_layers_stay(host):
    model = models.model_of(host)
    model.layers[0].trainable = False
    optimizer = models.optimizer_of(host)
    model.compile(optimizer=optimizer, loss="mse")
    before = [np.array(w) for w in model.layers[0].get_weights()]
    last = np.array(model.layers[-1].get_weights()[0])
    models.fit(model, 1)
    for a, b in zip(before, model.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(last, model.layers[-1].get_weights()[0])
    assert len(optimizer.trust_ratios) == len(model.trainable_variables) == 4
    model.layers[0].trainable = True
    model.compile(optimizer=models.optimizer_of(host), loss="mse")
    models.fit(model, 1)
    assert not np.array_equal(before[0], model.layers[0].get_weights()[0])


def test_a_hundred_eager_steps_leave_nothing_behind(host):
    weights, gradients = problems.make(shapes=SHAPES, steps=1)
    variables = variables_of(host, weights)
    optimizer = host.LAMB(0.01, weight_decay=0.1, global_clipnorm=1.0)

    def steps(count):
        for _ in range(count):
            step(optimizer, variables, gradients[0])
        gc.collect()
        return len(gc.get_objects())

    steps(10)
    before = steps(2)
    assert steps(100) - before < 100  # Less than one object a step.
    assert optimizer._programs.value.trace_count == 2


def test_outside_the_scope_every_copy_moves(host, run, replicas):
    weights = [[3.0, 4.0], [1.0, 2.0]]
    with replicas.scope():
        spread = [host.variable(w, f"w{i}") for i, w in enumerate(weights)]
        optimizer = host.LAMB(0.1)
        optimizer.build(spread)
    alone = [host.variable(w, f"w{i}") for i, w in enumerate(weights)]
    other = host.LAMB(0.1)
    gradients = [tf.constant([1.0, -1.0]), tf.constant([0.5, 2.0])]

    def step():
        optimizer.apply_gradients(zip(gradients, spread, strict=True))

    if run(step) is not step:
        step = tf.function(step)  # XLA takes no variables of several devices.
    step()
    other.apply_gradients(zip(gradients, alone, strict=True))
    for one, several in zip(alone, spread, strict=True):
        values = getattr(several, "value", several)
        values = values if hasattr(values, "values") else several
        for copy in values.values:
            np.testing.assert_allclose(copy, one, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2,), (200, 200)])
def test_a_variable_that_comes_twice_moves_twice(host, shape):
    once, twice = (host.variable(tf.fill(shape, 3.0), "w") for _ in "12")
    first, second = host.LAMB(0.1), host.LAMB(0.1)
    gradient = tf.ones(shape)
    first.apply_gradients([(gradient, once)])
    second.apply_gradients([(gradient, twice)] * 2)
    step = 3.0 - float(tf.reshape(tf.convert_to_tensor(once), [-1])[0])
    moved = 3.0 - float(tf.reshape(tf.convert_to_tensor(twice), [-1])[0])
    assert moved > 1.5 * step > 0.0


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_of_unknown_shape(host, count):
    variables = [host.variable(tf.ones([1, 3]), f"w{i}") for i in range(count)]
    optimizer = host.LAMB(0.1)
    optimizer.build(variables)

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def step(gradient):
        optimizer.apply_gradients([(gradient, v) for v in variables])

    step(tf.ones([1, 3]))
    for variable in variables:
        np.testing.assert_allclose(variable, 0.9, rtol=1e-5)


def test_a_gradient_of_another_shape_is_an_error(host):
    w = host.variable(tf.ones([2, 3]), "w")
    with pytest.raises(ValueError, match=r"gradient of w has shape \(3,\)"):
        host.LAMB(0.1).apply_gradients([(tf.ones([3]), w)])
