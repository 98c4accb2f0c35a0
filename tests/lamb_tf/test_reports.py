"""Reports by users of the peers that no other file is the home of.

`docs/reports.md` lists all thirty, each with its test; the numbers here
are those of its rows. Where a peer is at hand, a control shows that it
still does what was reported.
"""

import ast
import pathlib
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tests.lamb_tf import models, problems, reference
from tests.lamb_tf.conftest import ROOT

ALGORITHMS = ["LAMB", "LARS"]
REFERENCES = {"LAMB": reference.lamb, "LARS": reference.lars}


def weights_after(host, optimizer, start, gradients, dtype="float32"):
    """Returns the weights as float32; with no host, of a bare variable."""
    w = host.variable(start, "w", dtype) if host else tf.Variable(start)
    for gradient in gradients:
        optimizer.apply_gradients([(tf.cast(gradient, dtype), w)])
    return np.array(tf.cast(tf.convert_to_tensor(w), "float32"))


def peers():
    """Returns a constructor of each peer's LAMB that is installed."""
    found = [keras.optimizers.Lamb]
    found.append(tf_models_lamb())
    return found


def tf_models_lamb():
    return pytest.importorskip("official.modeling.optimization.lamb").LAMB


# --- 1, 25, 30: low precision. ---


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", ["paper", "you2017"])
def test_1_lars_trains_low_precision_weights(host, dtype, variant):
    """LAMB: `test_update.py::test_low_precision_follows_float32`."""
    start = tf.cast(tf.fill([8], 1.5), dtype)
    gradients = [np.linspace(-1.0, 1.0, 8).astype("float32")] * 100
    rounded = [tf.cast(tf.cast(g, dtype), "float32") for g in gradients]
    arguments = {"weight_decay": 0.01, "variant": variant}
    end = weights_after(
        host, host.LARS(1e-3, **arguments), start, gradients, dtype
    )
    should = reference.lars(
        {"w": np.full(8, 1.5)},
        [{"w": np.array(g)} for g in rounded],
        [1e-3] * 100,
        **arguments,
    )["w"]
    ulp = {"bfloat16": 2.0**-8, "float16": 2.0**-10}[dtype]
    np.testing.assert_allclose(end, should, rtol=ulp)


def test_1_peers_do_not_train_bfloat16():
    ones = tf.ones([4], tf.bfloat16)
    for peer, stuck in zip(peers(), [1.0, np.nan], strict=True):
        end = weights_after(None, peer(1e-3), ones, [ones] * 3, "bfloat16")
        np.testing.assert_array_equal(end, stuck)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_25_seventy_thousand_ones_in_float16(host, algorithm):
    """The sum of squares is above 65504, float16's largest number."""
    ones = tf.ones([70_000], tf.float16)
    optimizer = getattr(host, algorithm)(0.1)
    end = weights_after(host, optimizer, ones, [ones], "float16")
    np.testing.assert_allclose(end, 0.9, rtol=2.0**-11)
    np.testing.assert_allclose(
        optimizer.trusts["w"].w_norm, 70_000**0.5, rtol=1e-6
    )


def test_25_peers_overflow():
    ones = tf.ones([70_000], tf.float16)
    for peer in peers():
        end = weights_after(None, peer(0.1), ones, [ones], "float16")
        assert np.isnan(end).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_30_a_zero_gradient_is_finite(host, algorithm, dtype):
    ones, zeros = tf.ones([4]), tf.zeros([4])
    optimizer = getattr(host, algorithm)(0.1)
    end = weights_after(host, optimizer, ones, [zeros] * 3, dtype)
    np.testing.assert_array_equal(end, 1.0)
    decayed = getattr(host, algorithm)(0.1, weight_decay=0.1)
    end = weights_after(host, decayed, ones, [zeros] * 2, dtype)
    # The decay alone is a step of a tenth of the weights.
    ulp = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20}
    np.testing.assert_allclose(end, 0.81, rtol=ulp[dtype])


def test_30_peers_are_not_in_bfloat16():
    ones = tf.ones([4], tf.bfloat16)
    for peer in peers():
        end = weights_after(None, peer(0.1), ones, [0.0 * ones], "bfloat16")
        assert np.isnan(end).all()


# --- 3: compile. ---


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_3_compile_takes_the_optimizer(host, algorithm):
    model = models.model_of(host, getattr(host, algorithm)(0.01))
    losses = models.fit(model, 2)
    assert losses[-1] < losses[0]
    # By name as well, from a config file.
    model.compile(optimizer=f"lamb_tf>{algorithm}", loss="mse")
    assert type(model.optimizer) is getattr(host, algorithm)


def test_3_keras_3_does_not_take_that_of_tf_models():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="Could not interpret optimizer"):
        model.compile(optimizer=tf_models_lamb()(), loss="mse")


# --- 7: state that is skipped; ours: test_state.py. ---


def test_7_keras_own_lamb_skips_its_state():
    w = keras.Variable(tf.ones([2]))
    saved, loaded = (keras.optimizers.Lamb(0.1) for _ in range(2))
    saved.apply_gradients([(tf.ones([2]), w)])
    store = {}
    saved.save_own_variables(store)
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        loaded.load_own_variables(store)
    loaded.build([w])
    assert int(loaded.iterations) == 0


# --- 11, 12, 13, 14: arguments. ---


def test_11_tf_models_reads_a_string_by_its_letters():
    """Ours: `test_signature.py::test_bad_value_names_argument_and_value`."""
    peer = tf_models_lamb()(exclude_from_weight_decay="bias")
    assert not peer._do_use_weight_decay("kernels/a")


def test_12_tf_models_saves_no_exclusions():
    """Ours: `test_state.py::test_config_round_trips_every_argument`."""
    config = tf_models_lamb()(exclude_from_weight_decay=["bias"]).get_config()
    assert not [key for key in config if "exclude" in key]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_14_a_layer_norm_by_another_name(host, algorithm):
    model = models.model_of(host)
    optimizer = getattr(host, algorithm)(
        exclude_from_weight_decay=["LayerNorm", "bias"],
    )
    with pytest.warns(UserWarning, match="'LayerNorm' matches no variable"):
        optimizer.build(model.trainable_variables)
    assert "gamma" in optimizer.describe()
    optimizer = getattr(host, algorithm)(
        exclude_from_weight_decay=["layer_norm", "bias"], weight_decay=0.1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        optimizer.build(model.trainable_variables)
    rows = [row.split() for row in optimizer.describe().splitlines()[1:]]
    decayed = {row[0].split("/")[-1]: row[-2] for row in rows}
    assert decayed == {
        "kernel": "yes",
        "bias": "no",
        "gamma": "no",
        "beta": "no",
    }


def test_14_tf_models_decays_it_without_a_word():
    peer = tf_models_lamb()(exclude_from_weight_decay=["LayerNorm"])
    assert peer._do_use_weight_decay("layer_norm/gamma")


# --- 15 to 19: the step. ---


def test_15_the_decay_is_not_in_the_moments(host):
    """By hand; LARS, where Algorithm 1 does add it: the next test."""
    w = host.variable([3.0, 4.0], "w")
    optimizer = host.LAMB(0.1, weight_decay=0.5, epsilon=0.0)
    optimizer.apply_gradients([(tf.constant([2.0, -2.0]), w)])
    (m, v) = (slot.numpy() for slot in optimizer._entries.value[0].slots)
    np.testing.assert_allclose(m, [0.2, -0.2], rtol=1e-6)
    np.testing.assert_allclose(v, [0.004, 0.004], rtol=1e-6)
    # r = (1, -1) and r + decay * w = (2.5, 1); the ratio is 5 / sqrt(7.25).
    ratio = 5.0 / 7.25**0.5
    np.testing.assert_allclose(optimizer.trust_ratios["w"], ratio, rtol=1e-6)
    should = [3.0 - 0.1 * ratio * 2.5, 4.0 - 0.1 * ratio * 1.0]
    np.testing.assert_allclose(w.numpy(), should, rtol=1e-6)


def test_15_lars_adds_the_decay_to_the_gradient(host):
    w = host.variable([3.0, 4.0], "w")
    optimizer = host.LARS(0.1, momentum=0.5, weight_decay=0.5)
    optimizer.apply_gradients([(tf.constant([2.0, -2.0]), w)])
    # m = (g + decay * w) / 2 = (1.75, 0); the ratio is 5 / 1.75.
    np.testing.assert_allclose(w.numpy(), [3.0 - 0.5, 4.0], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_17_no_cap_on_the_norm_of_the_weights(host, algorithm):
    start = np.full(4, 100.0, np.float32)
    optimizer = getattr(host, algorithm)(0.1)
    end = weights_after(host, optimizer, start, [np.ones(4)])
    # A tenth of the norm, 200; a cap of 10 would move it by 0.5.
    np.testing.assert_allclose(end, 90.0, rtol=1e-6)
    capped = getattr(host, algorithm)(0.1, trust_clip=(0.0, 10.0))
    end = weights_after(host, capped, start, [np.ones(4)])
    np.testing.assert_allclose(end, 99.5, rtol=1e-6)


def test_18_the_bias_correction_stands_inside_the_norm(host):
    """By hand, at step 2, where both corrections differ from the rate's."""
    w = host.variable([3.0, 4.0], "w")
    optimizer = host.LAMB(0.1, weight_decay=0.5, epsilon=0.0)
    value = np.array([3.0, 4.0])
    m = v = 0.0
    for t, g in enumerate(np.array([[2.0, -2.0], [1.0, 3.0]]), 1):
        optimizer.apply_gradients([(tf.constant(g, tf.float32), w)])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        u = m / (1 - 0.9**t) / np.sqrt(v / (1 - 0.999**t)) + 0.5 * value
        inside = 0.1 * np.linalg.norm(value) / np.linalg.norm(u) * u
        # What was reported: the moments bare, the rate corrected.
        bare = m / np.sqrt(v) + 0.5 * value
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        outside = rate * np.linalg.norm(value) / np.linalg.norm(bare) * bare
        assert np.abs(inside - outside).max() > 0.01
        value = value - inside
    np.testing.assert_allclose(w.numpy(), value, rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_19_nothing_is_clipped_by_default(host, algorithm):
    optimizer = getattr(host, algorithm)()
    for clip in ("clipnorm", "clipvalue", "global_clipnorm"):
        assert optimizer.get_config()[clip] is None
    weights_after(host, optimizer, np.ones(4), [np.full(4, 1000.0)])
    m = optimizer._entries.value[0].slots[0]
    np.testing.assert_allclose(m.numpy(), 100.0, rtol=1e-6)


# --- 20: the global norm. ---


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_20_the_global_norm_is_over_all_variables(host, algorithm):
    shapes = {"kernel": (4, 3), "bias": (3,), "scale": ()}
    weights, gradients = problems.make(shapes=shapes, steps=4)
    # The size of a gradient must matter, and decay makes it.
    arguments = {"weight_decay": 1.0}
    if algorithm == "LAMB":
        arguments["epsilon"] = 0.1
    optimizer = getattr(host, algorithm)(0.1, global_clipnorm=0.05, **arguments)
    end = problems.train(host, optimizer, weights, gradients)
    clipped = []
    for grads in gradients:
        norm = np.sqrt(sum((np.float64(g) ** 2).sum() for g in grads.values()))
        assert norm > 0.05
        clipped.append({k: g * (0.05 / norm) for k, g in grads.items()})
    should = REFERENCES[algorithm](weights, clipped, [0.1] * 4, **arguments)
    problems.assert_same_displacement(weights, end, should, 4)


# --- 21, 23, 24, 27, 28. ---


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_21_the_ratio_is_that_of_the_whole_variable(host, algorithm):
    weights, gradients = problems.make(shapes={"w": (6, 2)}, steps=3)
    split = [2, 4]
    whole = ShardedVariable(
        [
            tf.Variable(part, name=f"w/part_{i}")
            for i, part in enumerate(tf.split(weights["w"], split))
        ],
        name="w",
    )
    optimizer = getattr(host, algorithm)(0.1, weight_decay=0.1)
    for grads in gradients:
        parts = tf.split(grads["w"], split)
        optimizer.apply_gradients(
            list(zip(parts, whole.variables, strict=True))
        )
    end = {"w": np.array(tf.convert_to_tensor(whole))}
    rates = [0.1] * 3
    should = REFERENCES[algorithm](weights, gradients, rates, weight_decay=0.1)
    problems.assert_same_displacement(weights, end, should, 3)
    assert list(optimizer.trust_ratios) == ["w"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_23_one_step_of_many_variables_counts_once(host, algorithm):
    optimizer = getattr(host, algorithm)(0.1)
    variables = [host.variable(tf.ones([2]), f"v{i}") for i in range(10)]
    step = tf.function(
        lambda: optimizer.apply_gradients(
            [(tf.ones([2]), v) for v in variables]
        )
    )
    for count in (1, 2):
        step()
        assert int(optimizer.iterations) == count


@pytest.mark.parametrize("variant", ["paper", "you2017"])
def test_24_a_zero_bias_moves_under_lars(host, variant):
    optimizer = host.LARS(0.1, momentum=0.0, variant=variant)
    end = weights_after(host, optimizer, np.zeros(3), [np.ones(3)])
    np.testing.assert_allclose(end, -0.1, rtol=1e-6)
    optimizer = host.LARS(0.1, variant=variant, weight_decay=0.1)
    gradients = [np.ones(3)] * 5
    end = weights_after(host, optimizer, np.zeros(3), gradients)
    should = reference.lars(
        {"w": np.zeros(3)},
        [{"w": g} for g in gradients],
        [0.1] * 5,
        variant=variant,
        weight_decay=0.1,
    )["w"]
    np.testing.assert_allclose(end, should, rtol=1e-5)


def test_27_lars_is_not_traced_again(host):
    """LAMB: `test_update.py`."""
    variables = [host.variable(tf.ones([3, 2]), f"v{i}") for i in range(3)]
    optimizer = host.LARS(1e-3)
    counts = []
    for _ in range(20):
        optimizer.apply_gradients([(tf.ones([3, 2]), v) for v in variables])
        counts.append(optimizer._programs.value.trace_count)
    assert counts == [1] * 20


@pytest.mark.parametrize("variant", ["paper", "you2017"])
def test_28_lars_without_decay_adapts(host, variant):
    optimizer = host.LARS(0.1, momentum=0.0, variant=variant)
    end = weights_after(host, optimizer, [3.0, 4.0], [[6.0, 8.0]])
    # The ratio is 5 / 10, whatever the variant.
    np.testing.assert_allclose(end, [3.0 - 0.3, 4.0 - 0.4], rtol=1e-6)


# --- The table. ---


def rows_of_the_table():
    text = (ROOT / "docs" / "reports.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [row for row in rows if row[0].isdigit()]


def functions_of(path):
    tree = ast.parse(pathlib.Path(path).read_text())
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_the_table_has_all_reports():
    rows = rows_of_the_table()
    assert [int(row[0]) for row in rows] == list(range(1, 31))
    assert {len(row) for row in rows} == {5}
    assert all(all(row) for row in rows)


def test_every_test_of_the_table_exists():
    named = 0
    for row in rows_of_the_table():
        tests = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row[-1])
        assert tests, row
        for file, name in tests:
            assert name in functions_of(ROOT / "tests" / "lamb_tf" / file), row
            named += 1
    assert named >= 30


def test_every_report_of_this_file_is_in_its_row():
    rows = {int(row[0]): row[-1] for row in rows_of_the_table()}
    for name in functions_of(__file__):
        number = re.match(r"test_(\d+)_", name)
        if number:
            assert name in rows[int(number[1])]
