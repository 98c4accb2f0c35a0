import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import layerwise


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (1,),
        (7,),
        (3, 5),
        (768,),
        (2, 3, 4),
        (33, 103),
        (4, 16, 9),
        (0,),
        (0, 4),
    ],
)
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("norm", layerwise.NORMS)
def test_norm(shape, norm, jit, by_rows):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    function = tf.function(layerwise.norm_of, jit_compile=jit)
    value = function(tf.constant(x), norm, by_rows)
    assert value.shape == ()
    if x.size:
        order = {"l2": 2, "l1": 1, "linf": np.inf}[norm]
        should = np.linalg.norm(np.float64(x).ravel(), order)
    else:
        should = -np.inf if norm == "linf" else 0.0
    np.testing.assert_allclose(value, should, rtol=1e-6)


@pytest.mark.parametrize("norm", layerwise.NORMS)
def test_norm_by_rows_reads_its_operand_once(norm):
    """XLA must fuse the terms into the sum and not write them to memory."""
    function = tf.function(layerwise.norm_of, jit_compile=True)
    x = tf.ones([1024, 256])
    ir = function.experimental_get_compiler_ir
    compiled = ir(x, norm, True, False)("optimized_hlo")
    entry = compiled[compiled.index("\nENTRY") :]
    assert entry.count("f32[1024,256]") == 2  # The parameter and its type.
    long = ir(x, norm, False, False)("optimized_hlo")
    assert long[long.index("\nENTRY") :].count("f32[1024,256]") > 2


@pytest.mark.parametrize("norm", layerwise.NORMS)
@pytest.mark.parametrize("shape", [(3,), (3, 7), (3, 2, 4)])
def test_norms_of_a_stack(shape, norm):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values = layerwise.norm_of(tf.constant(x), norm, stacked=True)
    assert values.shape == (3, *[1] * (len(shape) - 1))
    order = {"l2": 2, "l1": 1, "linf": np.inf}[norm]
    should = [np.linalg.norm(np.float64(row).ravel(), order) for row in x]
    np.testing.assert_allclose(tf.reshape(values, [3]), should, rtol=1e-6)


def test_norm_of_many_equal_numbers():
    # A serial float32 sum of 2**24 ones and more stands still.
    n = 2**24 + 2**22
    value = tf.function(layerwise.norm_of, jit_compile=True)(tf.ones([n]))
    np.testing.assert_allclose(value, np.sqrt(n), rtol=1e-6)


@pytest.mark.parametrize(
    ("clip", "should"),
    [(None, 5.0), ((0.0, 10.0), 5.0), ((6.0, 9.0), 6.0), ((1.0, 2.0), 2.0)],
)
def test_phi(clip, should):
    assert float(layerwise.phi(tf.constant(5.0), clip)) == should


def trust(w, u, **flags):
    return layerwise.Layer(**flags).trust(tf.constant(w), tf.constant(u))


@pytest.mark.parametrize("clip", [None, (0.5, 2.0)])
@pytest.mark.parametrize("coefficient", [1.0, 0.001])
@pytest.mark.parametrize("norm", layerwise.NORMS)
@pytest.mark.parametrize(
    ("w", "u"), [([0.0, 0.0], [3.0, 4.0]), ([3.0, 4.0], [0.0, 0.0])]
)
def test_ratio_is_one_where_a_norm_is_zero(w, u, norm, coefficient, clip):
    flags = {"trust_clip": clip, "trust_coefficient": coefficient}
    assert float(trust(w, u, norm=norm, **flags).ratio) == 1.0


def test_ratio():
    w, u = [3.0, 4.0], [0.0, 2.0]
    assert [float(x) for x in trust(w, u)] == [2.5, 5.0, 2.0]
    assert float(trust(w, u, trust_clip=(0.0, 1.0)).ratio) == 0.5
    assert float(trust(w, u, norm="l1").ratio) == 3.5
    assert float(trust(w, u, norm="linf").ratio) == 2.0
    assert float(trust(w, u, trust_coefficient=0.5).ratio) == 1.25


def test_a_layer_not_adapted_has_ratio_one_and_no_norms():
    ratio, w_norm, u_norm = trust(
        [3.0], [2.0], adapted=False, trust_coefficient=0.001
    )
    assert float(ratio) == 1.0
    assert np.isnan(w_norm) and np.isnan(u_norm)


def test_ratio_of_2017_adds_the_norms():
    layer = layerwise.Layer(weight_decay=0.2)
    w, g = tf.constant([3.0, 4.0]), tf.constant([-6.0, -8.0])
    assert [float(x) for x in layer.trust_of_2017(w, g)[1:]] == [5.0, 11.0]


def test_no_cap_on_the_norm_by_default():
    assert float(trust([100.0] * 4, [0.5] * 4).ratio) == 200.0


def test_decay():
    w, x = tf.constant([3.0, 4.0]), tf.constant([0.0, 1.0])
    layer = layerwise.Layer(weight_decay=0.5)
    np.testing.assert_array_equal(layer.with_decay(x, w), [1.5, 3.0])
    assert layerwise.Layer().with_decay(x, w) is x
