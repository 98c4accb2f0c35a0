import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import rules


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.88, 0.9, 0.999, 0.9999])
@pytest.mark.parametrize("t", [1, 2, 10, 1000, 1_000_000])
def test_one_minus_power_loses_no_digits(beta, t):
    should = -np.expm1(t * np.log(beta)) if beta else 1.0
    t = tf.constant(t, tf.float32)
    compiled = tf.function(rules.one_minus_power, jit_compile=True)
    for value in (rules.one_minus_power(beta, t), compiled(beta, t)):
        np.testing.assert_allclose(value, should, rtol=3e-7)


def test_golden_step():
    # By hand: m = 0.1, v = 0.001, both corrected to 1; r = 1 / (1 + eps).
    one = tf.constant([1.0, -1.0])
    zero = tf.zeros(2)
    r, (m, v) = rules.Lamb(epsilon=1.0)(one, zero, zero, tf.constant(1.0))
    np.testing.assert_allclose(m, [0.1, -0.1], rtol=1e-6)
    np.testing.assert_allclose(v, [1e-3, 1e-3], rtol=1e-6)
    np.testing.assert_allclose(r, [0.5, -0.5], rtol=1e-6)


def test_without_correction():
    rule = rules.Lamb(epsilon=0.0, bias_correction=False)
    r, _ = rule(tf.ones(1), tf.zeros(1), tf.zeros(1), tf.constant(1.0))
    np.testing.assert_allclose(r, [0.1 / np.sqrt(1e-3)], rtol=1e-6)
