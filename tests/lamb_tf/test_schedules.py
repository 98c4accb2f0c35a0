import numpy as np
import pytest
import tensorflow as tf

from lamb_tf.schedules import MixedBatch, WarmupPolynomialDecay
from tests.lamb_tf import reference

ULP = 2.0**-23
CASES = [
    (5e-3, 3125, 15625, 1.0, 0.0, "configured"),
    (5e-3, 3125, 15625, 1.0, 0.0, "on_decay_curve"),
    (6e-3, 2000, 7038, 0.5, 0.0, "configured"),
    (6e-3, 2000, 7038, 0.5, 1e-5, "on_decay_curve"),
    (6.25e-4, 3125, 1_000_000, 1.0, 0.0, "configured"),
    (1e-3, 0, 100, 2.0, 1e-4, "configured"),
    (1e-3, 100, 100, 1.0, 0.0, "configured"),
]


def steps_of(case):
    warmup, total = case[1], case[2]
    marks = {0, 1, warmup - 1, warmup, warmup + 1, total // 2}
    marks |= {total - 2, total - 1, total, total + 1, total + 1000}
    return sorted(t for t in marks if t >= 0)


@pytest.mark.parametrize("case", CASES)
def test_every_mark_is_exact_in_float32(case):
    schedule = WarmupPolynomialDecay(*case)
    compiled = tf.function(schedule, jit_compile=True)
    for t in steps_of(case):
        should = reference.warmup_polynomial(t, *case)
        for rate in (schedule(t), compiled(tf.constant(t, tf.int64))):
            assert rate.dtype == tf.float32
            # Four roundings, or a power's; relative, so also at the end.
            assert abs(float(rate) - should) <= 6 * ULP * abs(should), t


def test_paper_formula_without_warmup():
    schedule = WarmupPolynomialDecay(0.5, 0, 8)
    rates = [float(schedule(t)) for t in range(9)]
    assert rates == [0.5 * (1 - t / 8) for t in range(9)]


def test_the_first_update_of_a_warmup_has_rate_zero():
    assert float(WarmupPolynomialDecay(0.5, 4, 8)(0)) == 0.0


def test_peaks():
    configured = WarmupPolynomialDecay(1.0, 4, 8, peak="configured")
    on_curve = WarmupPolynomialDecay(1.0, 4, 8, peak="on_decay_curve")
    assert float(configured(4)) == 1.0
    assert float(on_curve(4)) == 0.5
    assert float(on_curve(2)) == 0.25


@pytest.mark.parametrize(
    "step",
    [3, np.int64(3), np.int32(3), tf.constant(3), tf.constant(3, tf.int64)],
)
def test_steps_of_every_kind(step):
    schedule = WarmupPolynomialDecay(0.5, 4, 8)
    assert float(schedule(step)) == 0.375
    assert float(tf.function(schedule)(step)) == 0.375


def test_mixed_batch_warms_up_in_every_phase():
    first = WarmupPolynomialDecay(6e-3, 20, 70, 0.5)
    second = WarmupPolynomialDecay(4e-3, 2, 15, 0.5)
    mixed = MixedBatch([first, second])
    assert mixed.total_steps == 85
    compiled = tf.function(mixed, jit_compile=True)
    for t in range(90):
        should = first(t) if t < 70 else second(t - 70)
        assert float(mixed(t)) == float(should)
        np.testing.assert_allclose(compiled(tf.constant(t)), should, 1e-6)
    assert float(mixed(70)) == 0.0
    assert float(mixed(72)) == np.float32(4e-3)


@pytest.mark.parametrize(
    "schedule",
    [
        WarmupPolynomialDecay(6e-3, 20, 70, 0.5, 1e-5, "on_decay_curve"),
        MixedBatch(
            [
                WarmupPolynomialDecay(6e-3, 20, 70, 0.5),
                WarmupPolynomialDecay(4e-3, 2, 15),
            ]
        ),
    ],
    ids=["one_phase", "two_phases"],
)
def test_round_trips(host, schedule):
    schedules = host.keras.optimizers.schedules
    config = schedule.get_config()
    assert type(schedule).from_config(config).get_config() == config
    again = schedules.deserialize(schedules.serialize(schedule))
    assert type(again) is type(schedule)
    assert again.get_config() == config
    for optimizer in (host.LAMB(schedule), host.keras.optimizers.SGD(schedule)):
        saved = host.keras.optimizers.serialize(optimizer)
        loaded = host.keras.optimizers.deserialize(saved)
        assert type(loaded) is type(optimizer)
        assert loaded.get_config() == optimizer.get_config()


def test_the_optimizer_uses_the_rate_of_updates_done(host, run):
    schedule = WarmupPolynomialDecay(0.5, 2, 8)
    optimizer = host.keras.optimizers.SGD(schedule)
    w = host.variable(0.0, "w")
    step = run(lambda: optimizer.apply_gradients([(tf.constant(1.0), w)]))
    seen = []
    for _ in range(4):
        before = float(w)
        step()
        seen.append(before - float(w))
    np.testing.assert_allclose(seen, [schedule(t) for t in range(4)], 1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": -1.0}, "`learning_rate`.*-1.0"),
        ({"learning_rate": float("nan")}, "`learning_rate`.*nan"),
        ({"warmup_steps": 9}, "`warmup_steps`.*9"),
        ({"warmup_steps": 1.5}, "`warmup_steps`.*1.5"),
        ({"total_steps": 0}, "`total_steps`.*0"),
        ({"power": 0}, "`power`.*0"),
        ({"end": -1e-3}, "`end`.*-0.001"),
        ({"peak": "top"}, "`peak`.*top"),
    ],
)
def test_bad_arguments(changes, words):
    arguments = {"learning_rate": 1.0, "warmup_steps": 2, "total_steps": 8}
    with pytest.raises(ValueError, match=words):
        WarmupPolynomialDecay(**{**arguments, **changes})


@pytest.mark.parametrize("phases", [[], "abc", [1.0]])
def test_bad_phases(phases):
    with pytest.raises(ValueError, match="`phases`"):
        MixedBatch(phases)
