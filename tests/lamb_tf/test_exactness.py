"""LAMB against the paper, in float64, on both Kerases and in every mode."""

import pytest
import tensorflow as tf

from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf import problems, reference
from tests.lamb_tf.conftest import HOSTS

SCHEDULE = (0.05, 3, 14, 1.0, 0.0, "configured")
RATES = [
    reference.warmup_polynomial(t, *SCHEDULE) for t in range(problems.STEPS)
]
NOT_DECAYED = [k for k in problems.SHAPES if "gamma" in k]
NOT_ADAPTED = [k for k in problems.SHAPES if "free" in k]


def expected(weights, gradients, **changes):
    arguments = {
        "weight_decay": problems.WEIGHT_DECAY,
        "not_decayed": NOT_DECAYED,
        "not_adapted": NOT_ADAPTED,
    }
    return reference.lamb(weights, gradients, RATES, **{**arguments, **changes})


def lamb(host, **changes):
    arguments = {
        "weight_decay": problems.WEIGHT_DECAY,
        "exclude_from_weight_decay": problems.NOT_DECAYED,
        "exclude_from_layer_adaptation": problems.NOT_ADAPTED,
    }
    return host.LAMB(
        WarmupPolynomialDecay(*SCHEDULE), **{**arguments, **changes}
    )


def test_ten_steps_follow_the_paper(host, run):
    weights, gradients = problems.make()
    end = problems.train(host, lamb(host), weights, gradients, run)
    problems.assert_same_displacement(
        weights, end, expected(weights, gradients)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"bias_correction": False},
        {"trust_clip": (0.5, 2.0)},
        {"beta_1": 0.0, "beta_2": 0.88, "epsilon": 1e-3},
    ],
    ids=["no_correction", "phi", "scalars"],
)
def test_variants_follow_the_paper(host, changes):
    weights, gradients = problems.make()
    optimizer = lamb(host, **changes)
    end = problems.train(host, optimizer, weights, gradients, tf.function)
    problems.assert_same_displacement(
        weights, end, expected(weights, gradients, **changes)
    )


def test_tf_keras_without_xla_follows_the_paper():
    host = HOSTS["tf_keras"]
    weights, gradients = problems.make()
    optimizer = lamb(host, jit_compile=False)
    end = problems.train(host, optimizer, weights, gradients)
    problems.assert_same_displacement(
        weights, end, expected(weights, gradients)
    )


def test_a_hundred_steps_follow_the_paper(host):
    weights, gradients = problems.make(steps=100)
    optimizer = host.LAMB(
        0.01,
        weight_decay=problems.WEIGHT_DECAY,
        exclude_from_layer_adaptation=[],
    )
    end = problems.train(host, optimizer, weights, gradients)
    should = reference.lamb(
        weights, gradients, [0.01] * 100, weight_decay=problems.WEIGHT_DECAY
    )
    problems.assert_same_displacement(weights, end, should, steps=100)


def test_the_measure_refuses_adamw(host):
    weights, gradients = problems.make()
    optimizer = host.keras.optimizers.AdamW(
        WarmupPolynomialDecay(*SCHEDULE),
        weight_decay=problems.WEIGHT_DECAY,
        epsilon=1e-6,
    )
    end = problems.train(host, optimizer, weights, gradients)
    for k in ("dense/kernel", "wide/kernel"):
        with pytest.raises(AssertionError):
            problems.assert_same_displacement(
                {k: weights[k]}, end, expected(weights, gradients)
            )


def test_the_measure_refuses_decay_outside_the_ratio(host):
    weights, gradients = problems.make()
    end = problems.train(host, lamb(host), weights, gradients)
    outside = expected(weights, gradients, decay_inside=False)
    with pytest.raises(AssertionError):
        problems.assert_same_displacement(
            {"dense/kernel": weights["dense/kernel"]}, end, outside
        )


def test_keras_own_lamb_decays_outside_the_ratio():
    host = HOSTS["keras"]
    weights, gradients = problems.make()
    weights = {"dense/kernel": weights["dense/kernel"]}
    gradients = [{"dense/kernel": g["dense/kernel"]} for g in gradients]
    optimizer = host.keras.optimizers.Lamb(
        WarmupPolynomialDecay(*SCHEDULE),
        weight_decay=problems.WEIGHT_DECAY,
        epsilon=1e-6,
    )
    end = problems.train(host, optimizer, weights, gradients)
    with pytest.raises(AssertionError):
        problems.assert_same_displacement(
            weights, end, expected(weights, gradients)
        )


def test_nothing_adapted_is_adamw_with_decay_scaled_by_the_rate(host):
    weights, gradients = problems.make()
    rate, decay = 0.01, 0.1
    # Keras adds epsilon before the correction: keep it out of the way.
    arguments = {"epsilon": 1e-30, "weight_decay": decay}
    optimizer = host.LAMB(
        rate, exclude_from_layer_adaptation=["."], **arguments
    )
    ours = problems.train(host, optimizer, weights, gradients, tf.function)
    optimizer = host.keras.optimizers.AdamW(rate, **arguments)
    theirs = problems.train(host, optimizer, weights, gradients, tf.function)
    # Keras takes `1 - beta_2**t` literally: 1e-5 off at the first step.
    problems.assert_same_displacement(weights, ours, theirs, rtol=3e-5)


def test_excluded_everywhere_is_not_adapted_by_default(host):
    weights, gradients = problems.make()
    arguments = {"weight_decay": 0.1, "exclude_from_weight_decay": ["gamma"]}
    end = problems.train(host, host.LAMB(0.05, **arguments), weights, gradients)
    should = reference.lamb(
        weights,
        gradients,
        [0.05] * problems.STEPS,
        weight_decay=0.1,
        not_decayed=NOT_DECAYED,
        not_adapted=NOT_DECAYED,
    )
    problems.assert_same_displacement(weights, end, should)
