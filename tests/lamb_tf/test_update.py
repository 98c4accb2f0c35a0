import gc

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import programs, update
from tests.lamb_tf import problems, reference
from tests.lamb_tf.conftest import HOSTS


def traces(optimizer):
    return optimizer._programs.value.trace_count


def test_one_trace_per_shape_and_none_after_the_first_step(host):
    shapes = {f"a{i}/kernel": (6, 5) for i in range(6)}
    shapes |= {f"b{i}/kernel": (4,) for i in range(4)}
    weights, gradients = problems.make(shapes=shapes, steps=20)
    optimizer = host.LAMB(1e-3, weight_decay=0.1)
    variables = {k: host.variable(w, k[:2]) for k, w in weights.items()}
    for grads in gradients:
        optimizer.apply_gradients([(grads[k], v) for k, v in variables.items()])
        assert traces(optimizer) == 2
    assert int(optimizer.iterations) == 20


def test_many_shapes_bring_no_retracing_warning(host, caplog):
    shapes = {
        f"{name}/kernel": (i + 2, 3) for i, name in enumerate("abcdefghij")
    }
    weights, gradients = problems.make(shapes=shapes, steps=2)
    optimizer = host.LAMB(1e-3, weight_decay=0.1)
    tf.get_logger().propagate = True  # To caplog.
    problems.train(host, optimizer, weights, gradients)
    assert traces(optimizer) == len(shapes)
    assert "retracing" not in caplog.text


def test_many_optimizers_bring_no_retracing_warning(host, caplog):
    tf.get_logger().propagate = True  # To caplog.
    for _ in range(12):
        optimizer = host.LAMB(1e-3)
        w = host.variable(tf.ones([3, 2]), "w")
        optimizer.apply_gradients([(tf.ones([3, 2]), w)])
        optimizer.trust_table()
    assert traces(optimizer) == 1
    assert "retracing" not in caplog.text


def test_gradients_of_several_dtypes(host):
    names = ["a", "b"]
    variables = {k: host.variable(tf.ones([3, 2]), k) for k in names}
    optimizer = host.LAMB(0.1)
    dtypes = {"a": tf.float32, "b": tf.float64}
    optimizer.apply_gradients(
        [(tf.ones([3, 2], dtypes[k]), v) for k, v in variables.items()]
    )
    a, b = (np.array(v) for v in variables.values())
    np.testing.assert_allclose(a, 0.9, rtol=1e-5)
    np.testing.assert_array_equal(a, b)


def test_flags_cost_one_trace_each(host):
    weights, gradients = problems.make(
        shapes={"a": (6, 5), "b": (6, 5), "gamma": (6, 5), "c": (6, 5)}
    )
    optimizer = host.LAMB(
        1e-3, weight_decay=0.1, exclude_from_weight_decay=["gamma"]
    )
    problems.train(host, optimizer, weights, gradients)
    assert traces(optimizer) == 2


def test_a_graph_step_after_the_variables_of_another_have_gone(host):
    def train():
        optimizer = host.LAMB(1e-3)
        w = host.variable(tf.ones([3, 2]), "w")
        step = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
        step(tf.ones([3, 2]))
        return w.numpy()

    gc.freeze()  # To collect what other tests left would take a minute.
    first = train()
    gc.collect()
    gc.unfreeze()
    np.testing.assert_array_equal(train(), first)


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


@pytest.mark.parametrize(
    ("dtype", "jit"),
    [("bfloat16", False), ("bfloat16", True), ("float16", False)],
)
def test_low_precision_follows_float32(host, dtype, jit):
    shapes = {k: problems.SHAPES[k] for k in ("dense/kernel", "dense/zero")}
    weights, gradients = problems.make(shapes=shapes, steps=100)
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

    @tf.function(jit_compile=jit)
    def step(grads):
        optimizer.apply_gradients(
            [(tf.cast(grads[k], dtype), v) for k, v in variables.items()]
        )

    rounded = []
    for grads in gradients:
        grads = {k: tf.cast(g, dtype) for k, g in grads.items()}
        rounded.append({k: tf.cast(g, tf.float32) for k, g in grads.items()})
        step(grads)
    should = problems.train(host, full, weights, rounded, tf.function)
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


def test_dense_sums_duplicates():
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([2, 0, 2]))
    value = update.dense(slices, tf.Variable(tf.zeros([4, 2])))
    np.testing.assert_array_equal(value[:, 0], [1, 0, 2, 0])


@pytest.mark.parametrize("available", [False, True])
def test_xla_is_used_where_it_is(monkeypatch, available):
    assert programs.has_xla()
    monkeypatch.setattr(programs, "has_xla", lambda: available)
    optimizer = HOSTS["keras"].LAMB(1e-3)
    w = HOSTS["keras"].variable(tf.ones([3]), "w")
    step = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
    graph = step.get_concrete_function(tf.ones([3])).graph.as_graph_def()
    functions = graph.library.function
    assert available == any("_XlaMustCompile" in f.attr for f in functions)
