import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import layerwise, rules, update
from tests.lamb_tf import problems, reference


def traces(optimizer):
    layers = {entry.layer for entry in optimizer._entries.value}
    return sum(
        update.compiled(
            optimizer.rule, layer, True
        ).experimental_get_tracing_count()
        for layer in layers
    )


def test_one_trace_per_shape_and_none_after_the_first_step(host):
    # Scalars of its own: compiled functions are shared by equal ones.
    beta_1 = {"keras": 0.8125, "tf_keras": 0.78125}[host.name]
    shapes = {f"a{i}/kernel": (6, 5) for i in range(6)}
    shapes |= {f"b{i}/kernel": (4,) for i in range(4)}
    weights, gradients = problems.make(shapes=shapes, steps=20)
    optimizer = host.LAMB(1e-3, beta_1=beta_1, weight_decay=0.1)
    variables = {k: host.variable(w, k[:2]) for k, w in weights.items()}

    def step(grads):
        optimizer.apply_gradients([(grads[k], v) for k, v in variables.items()])

    step(gradients[0])
    assert traces(optimizer) == 2
    for grads in gradients[1:]:
        step(grads)
    assert traces(optimizer) == 2
    assert int(optimizer.iterations) == 20

    # A second optimizer of the same scalars finds the same programs.
    other = host.LAMB(1e-2, beta_1=beta_1, weight_decay=0.1)
    problems.train(host, other, weights, gradients[:2])
    assert traces(other) == 2


def test_a_graph_step_is_not_traced_again(host):
    optimizer = host.LAMB(1e-3)
    w = host.variable(tf.ones([3, 2]), "w")
    step = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
    counts = []
    for _ in range(20):
        step(tf.ones([3, 2]))
        counts.append(step.experimental_get_tracing_count())
    # TensorFlow traces a function twice if its first call makes variables.
    assert counts == [counts[0]] * 20


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_follows_float32(host, run, dtype):
    weights, gradients = problems.make(steps=100)
    weights = {
        k: np.array(tf.cast(tf.cast(w, dtype), tf.float32))
        for k, w in weights.items()
    }
    variables = {
        k: host.variable(w, k.replace("/", "_"), dtype)
        for k, w in weights.items()
    }
    optimizer = host.LAMB(1e-3, weight_decay=0.1)
    full = host.LAMB(1e-3, weight_decay=0.1)

    @run
    def step(grads):
        optimizer.apply_gradients(
            [(tf.cast(grads[k], dtype), v) for k, v in variables.items()]
        )

    rounded = []
    for grads in gradients:
        grads = {k: tf.cast(g, dtype) for k, g in grads.items()}
        rounded.append({k: tf.cast(g, tf.float32) for k, g in grads.items()})
        step(grads)
    should = problems.train(host, full, weights, rounded)
    ulp = {"bfloat16": 2.0**-8, "float16": 2.0**-10}[dtype]
    for k, variable in variables.items():
        # The float32 master copy leaves one rounding, not one a step.
        low = np.array(tf.cast(tf.convert_to_tensor(variable), tf.float32))
        np.testing.assert_allclose(low, should[k], rtol=ulp, atol=2e-6)


def test_master_copy_gives_way_to_weights_set_elsewhere(host, run):
    w = host.variable(tf.fill([8], 1.0), "w", "bfloat16")
    optimizer = host.LAMB(1e-4)
    step = run(lambda: optimizer.apply_gradients([(tf.ones([8]), w)]))
    step()
    w.assign(tf.cast(tf.fill([8], 100.0), tf.bfloat16))
    step()
    assert np.all(np.array(tf.cast(tf.convert_to_tensor(w), "float32")) > 99)


def test_float16_norm_does_not_overflow(host):
    w = host.variable(tf.ones([70_000]), "w", "float16")
    optimizer = host.LAMB(0.1)
    optimizer.apply_gradients([(tf.cast(tf.ones([70_000]), "float16"), w)])
    value = np.array(tf.cast(tf.convert_to_tensor(w), "float32"))
    np.testing.assert_allclose(value, 0.9, rtol=1e-3)


def test_float16_zero_gradient_is_finite(host):
    w = host.variable(tf.ones([4]), "w", "float16")
    optimizer = host.LAMB(0.1)
    optimizer.apply_gradients([(tf.zeros([4], tf.float16), w)])
    value = np.array(tf.cast(tf.convert_to_tensor(w), "float32"))
    np.testing.assert_array_equal(value, 1.0)


def test_float64_stays_float64(host):
    w = host.variable(np.ones(4), "w", "float64")
    optimizer = host.LAMB(0.1)
    optimizer.apply_gradients([(tf.ones([4], tf.float64), w)])
    should = reference.lamb({"w": np.ones(4)}, [{"w": np.ones(4)}], [0.1])
    # The rate itself is a float32 variable in either Keras.
    np.testing.assert_allclose(w.numpy(), should["w"], rtol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"global_clipnorm": 0.5},
        {"clipnorm": 0.5},
        {"clipvalue": 0.5},
        {"loss_scale_factor": 8.0},
    ],
    ids=str,
)
def test_sparse_gradient_equals_the_dense_one(host, run, options):
    if "loss_scale_factor" in options and host.name == "tf_keras":
        pytest.skip("`loss_scale_factor` is an argument of Keras 3")
    rng = np.random.default_rng(0)
    table = rng.normal(size=(6, 4)).astype(np.float32)
    slices = tf.IndexedSlices(
        rng.normal(size=(5, 4)).astype(np.float32),
        tf.constant([1, 3, 1, 5, 1], tf.int64),
        tf.constant([6, 4], tf.int64),
    )

    def train(gradient):
        w, other = host.variable(table, "w"), host.variable(table, "other")
        optimizer = host.LAMB(0.1, weight_decay=0.1, **options)

        @run
        def step(g):
            optimizer.apply_gradients([(g, w), (tf.ones([6, 4]), other)])

        for _ in range(3):
            step(gradient)
        return [w.numpy(), other.numpy()]

    dense = tf.convert_to_tensor(slices)
    np.testing.assert_array_equal(train(slices), train(dense))


def test_dense_sums_duplicates():
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([2, 0, 2]))
    value = update.dense(slices, tf.Variable(tf.zeros([4, 2])))
    np.testing.assert_array_equal(value[:, 0], [1, 0, 2, 0])


def test_xla_is_used_where_it_is():
    assert update.has_xla()
    function = update.compiled(rules.Lamb(), layerwise.Layer(), True)
    assert function is update.compiled(rules.Lamb(), layerwise.Layer(), True)
