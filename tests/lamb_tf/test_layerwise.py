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
def test_l2_norm(shape, jit, by_rows):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    norm = tf.function(layerwise.l2_norm, jit_compile=jit)
    norm = norm(tf.constant(x), by_rows)
    assert norm.shape == ()
    should = np.sqrt((np.float64(x) ** 2).sum())
    np.testing.assert_allclose(norm, should, rtol=1e-6)


def test_norm_by_rows_reads_its_operand_once():
    """XLA must fuse the square into the sum and not write it to memory."""
    norm = tf.function(layerwise.l2_norm, jit_compile=True)
    x = tf.ones([1024, 256])
    compiled = norm.experimental_get_compiler_ir(x, True)("optimized_hlo")
    entry = compiled[compiled.index("\nENTRY") :]
    assert entry.count("f32[1024,256]") == 2  # The parameter and its type.
    long = norm.experimental_get_compiler_ir(x, False)("optimized_hlo")
    assert long[long.index("\nENTRY") :].count("f32[1024,256]") > 2


def test_l2_norm_of_many_equal_numbers():
    # A serial float32 sum of 2**24 ones and more stands still.
    n = 2**24 + 2**22
    norm = tf.function(layerwise.l2_norm, jit_compile=True)(tf.ones([n]))
    np.testing.assert_allclose(norm, np.sqrt(n), rtol=1e-6)


@pytest.mark.parametrize(
    ("clip", "should"),
    [(None, 5.0), ((0.0, 10.0), 5.0), ((6.0, 9.0), 6.0), ((1.0, 2.0), 2.0)],
)
def test_phi(clip, should):
    assert float(layerwise.phi(tf.constant(5.0), clip)) == should


@pytest.mark.parametrize("clip", [None, (0.5, 2.0)])
@pytest.mark.parametrize(
    ("w", "u"), [([0.0, 0.0], [3.0, 4.0]), ([3.0, 4.0], [0.0, 0.0])]
)
def test_ratio_is_one_where_a_norm_is_zero(w, u, clip):
    ratio = layerwise.trust_ratio(tf.constant(w), tf.constant(u), clip)
    assert float(ratio) == 1.0


def test_ratio():
    w, u = tf.constant([3.0, 4.0]), tf.constant([0.0, 2.0])
    assert float(layerwise.trust_ratio(w, u)) == 2.5
    assert float(layerwise.trust_ratio(w, u, (0.0, 1.0))) == 0.5


def test_no_cap_on_the_norm_by_default():
    w, u = tf.fill([4], 100.0), tf.fill([4], 0.5)
    assert float(layerwise.trust_ratio(w, u)) == 200.0


def test_decay_is_inside_the_ratio():
    layer = layerwise.Layer(weight_decay=0.5)
    w, r = tf.constant([3.0, 4.0]), tf.constant([0.0, 1.0])
    new, ratio = layer(w, r, tf.constant(0.1))
    u = np.array([1.5, 3.0])
    np.testing.assert_allclose(ratio, 5 / np.linalg.norm(u), rtol=1e-6)
    np.testing.assert_allclose(new, w - 0.1 * ratio * u, rtol=1e-6)
