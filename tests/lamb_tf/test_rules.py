import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import layerwise, rules


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.88, 0.9, 0.999, 0.9999])
@pytest.mark.parametrize("t", [1, 2, 10, 1000, 1_000_000])
def test_one_minus_power_loses_no_digits(beta, t):
    should = -np.expm1(t * np.log(beta)) if beta else 1.0
    t = tf.constant(t, tf.float32)
    compiled = tf.function(rules.one_minus_power, jit_compile=True)
    for value in (rules.one_minus_power(beta, t), compiled(beta, t)):
        np.testing.assert_allclose(value, should, rtol=3e-7)


LAYER = layerwise.Layer(adapted=False)


def step(rule, g, *moments, w=None, t=1.0, rate=1.0, layer=LAYER):
    g = tf.constant(g)
    w = tf.zeros_like(g) if w is None else tf.constant(w)
    return rule(layer, w, g, moments, tf.constant(t), tf.constant(rate))


def test_golden_step_of_lamb():
    # By hand: m = 0.1, v = 0.001, both corrected to 1; r = 1 / (1 + eps).
    zero = tf.zeros(2)
    w, (m, v), _ = step(rules.Lamb(epsilon=1.0), [1.0, -1.0], zero, zero)
    np.testing.assert_allclose(m, [0.1, -0.1], rtol=1e-6)
    np.testing.assert_allclose(v, [1e-3, 1e-3], rtol=1e-6)
    np.testing.assert_allclose(w, [-0.5, 0.5], rtol=1e-6)


def test_lamb_without_correction():
    rule = rules.Lamb(epsilon=0.0, bias_correction=False)
    w, _, _ = step(rule, [1.0], tf.zeros(1), tf.zeros(1))
    np.testing.assert_allclose(w, [-0.1 / np.sqrt(1e-3)], rtol=1e-6)


@pytest.mark.parametrize(
    ("nesterov", "v_hat"),
    [("first", 0.999 * 0.001 / 0.001), ("both", 0.999e-3 / 1.999e-3 + 1.0)],
)
def test_golden_step_of_nesterov(nesterov, v_hat):
    # By hand, from appendix D at t = 1 and g = 1.
    m_hat = 0.9 * 0.1 / 0.19 + 1.0
    rule = rules.Lamb(epsilon=0.0, nesterov=nesterov)
    w, _, _ = step(rule, [1.0], tf.zeros(1), tf.zeros(1))
    np.testing.assert_allclose(w, [-m_hat / np.sqrt(v_hat)], rtol=1e-5)


@pytest.mark.parametrize(
    ("variant", "nesterov", "m", "moved"),
    [
        # m = 0.5 + 0.5 * 2; and one momentum ahead.
        ("paper", False, 1.5, 1.5 * 0.1),
        ("paper", True, 1.5, (0.75 + 1.0) * 0.1),
        # The rate is part of the momentum: m = 0.5 + 0.1 * 2.
        ("you2017", False, 0.7, 0.7),
        ("you2017", True, 0.7, 0.35 + 0.2),
    ],
)
def test_golden_step_of_lars(variant, nesterov, m, moved):
    rule = rules.Lars(momentum=0.5, variant=variant, nesterov=nesterov)
    w, moments, _ = step(rule, [2.0], tf.ones(1), rate=0.1)
    np.testing.assert_allclose(moments[0], [m], rtol=1e-6)
    np.testing.assert_allclose(w, [-moved], rtol=1e-6)


def test_ratio_of_2017_stands_before_the_momentum():
    # |w| = 5, |g| = 10, decay 0.2: 0.5 * 5 / (10 + 1), of the gradient alone.
    layer = layerwise.Layer(weight_decay=0.2, trust_coefficient=0.5)
    rule = rules.Lars(momentum=0.9, variant="you2017")
    g, w = np.float32([6.0, 8.0]), np.float32([3.0, 4.0])
    _, (m,), trust = step(rule, g, tf.zeros(2), w=w, rate=0.1, layer=layer)
    np.testing.assert_allclose(trust.ratio, 2.5 / 11, rtol=1e-6)
    np.testing.assert_allclose(m, 0.1 * 2.5 / 11 * (g + 0.2 * w), rtol=1e-6)
