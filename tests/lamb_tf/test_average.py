"""Averages of the weights: `use_ema` and what belongs to it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.lamb_tf import replicated
from tests.lamb_tf.models import fit, model_of, optimizer_of, weights_of


def averages_of(optimizer):
    return [
        tf.convert_to_tensor(average).numpy()
        for average in optimizer._model_variables_moving_average
    ]


def test_fit_with_an_average_of_the_weights(host, replicas):
    with replicas.scope():
        model = model_of(
            host,
            optimizer_of(
                host, learning_rate=0.01, use_ema=True, ema_momentum=0.9999
            ),
        )
    before = weights_of(model)
    fit(model, 2)
    # `fit` ends by `finalize_variable_values`: the weights are the average.
    for a, b in zip(before, weights_of(model), strict=True):
        np.testing.assert_allclose(a, b, atol=0.05)
        assert np.linalg.norm(b) >= 0.9 * np.linalg.norm(a)
    for a, b in zip(
        averages_of(model.optimizer), weights_of(model), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("every", [None, 2])
def test_averages_follow_their_definition(host, mirrored, every):
    def loop(count):
        return replicated.Loop(
            mirrored(count),
            host,
            lambda: host.LAMB(
                0.05,
                use_ema=True,
                ema_momentum=0.75,
                ema_overwrite_frequency=every,
            ),
        )

    one, two = loop(0), loop(2)
    # Keras 3 sets the average by the first update; tf_keras begins with
    # the weights before it.
    average = None
    if host.name == "tf_keras":
        average = list(replicated.start().values())
    for step, (x, y) in enumerate(zip(*replicated.data(), strict=True)):
        one.micro_step(x, y)
        two.micro_step(x, y)
        weights = list(one.weights().values())
        if every is None:
            average = [
                w if a is None else 0.75 * a + 0.25 * w
                for w, a in zip(weights, average or [None] * 3, strict=True)
            ]
            for a, b in zip(averages_of(one.optimizer), average, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        elif step % every == every - 1:
            for a, b in zip(averages_of(one.optimizer), weights, strict=True):
                np.testing.assert_array_equal(a, b)
    replicated.assert_same(
        one.weights(), two.weights(), rtol=2.4e-7, atol=2.4e-7
    )
    for a, b in zip(
        averages_of(one.optimizer), averages_of(two.optimizer), strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=2.4e-7, atol=2.4e-7)


def test_averages_of_bfloat16_weights_follow_float32(host, replicas):
    def averages(dtype):
        loop = replicated.Loop(
            replicas,
            host,
            lambda: host.LAMB(1e-3, use_ema=True, ema_momentum=0.9),
            dtype=dtype,
        )
        for name, value in replicated.start().items():
            rounded = tf.cast(tf.cast(value, "bfloat16"), dtype)
            loop.variables[name].assign(rounded)
        if host.name == "tf_keras":
            for average, variable in zip(
                loop.optimizer._model_variables_moving_average,
                loop.variables.values(),
                strict=True,
            ):
                average.assign(tf.cast(variable, tf.float32))
        loop.train(20)
        return averages_of(loop.optimizer)

    for a, b in zip(averages("float32"), averages("bfloat16"), strict=True):
        assert b.dtype == np.float32
        # The gradients differ, as they come from rounded weights; half a
        # unit of bfloat16 would be 2e-3.
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_average_of_bfloat16_weights_without_a_gradient(host):
    still, moved = (
        host.variable([3.0, 4.0], name, "bfloat16")
        for name in ("still", "moved")
    )
    optimizer = host.LAMB(0.1, use_ema=True, ema_momentum=0.5)
    optimizer.build([still, moved])
    for _ in range(3):
        optimizer.apply_gradients(
            [(None, still), (tf.ones([2], tf.bfloat16), moved)]
        )
    # Not of the zeros from which its master copy starts.
    np.testing.assert_array_equal(averages_of(optimizer)[0], [3.0, 4.0])


def test_average_of_weights_set_elsewhere(host):
    w = host.variable([3.0, 4.0], "w", "bfloat16")
    optimizer = host.LAMB(0.0, use_ema=True, ema_momentum=0.5)
    step = tf.ones([2], tf.bfloat16)
    optimizer.apply_gradients([(step, w)])
    w.assign(tf.constant([7.0, 8.0], tf.bfloat16))
    optimizer.apply_gradients([(step, w)])
    np.testing.assert_array_equal(averages_of(optimizer)[0], [5.0, 6.0])


def test_finalizing_some_variables_takes_their_own_averages(host):
    """As `fit` does where a layer was frozen after the build."""
    variables = [
        host.variable(tf.fill([2], value), name)
        for name, value in (("a", 1.0), ("b", 10.0), ("c", 100.0))
    ]
    optimizer = host.LAMB(0.01, use_ema=True, ema_momentum=0.5)
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones([2]), v) for v in variables])
    average = averages_of(optimizer)
    before = tf.convert_to_tensor(variables[0]).numpy()
    optimizer.finalize_variable_values(variables[1:])
    values = [tf.convert_to_tensor(v).numpy() for v in variables]
    np.testing.assert_array_equal(values[0], before)
    np.testing.assert_array_equal(values[1], average[1])
    np.testing.assert_array_equal(values[2], average[2])


def test_finalizing_before_the_first_update_changes_nothing(host, mirrored):
    """As `fit` does where the loss scale was too high for every step."""
    loop = replicated.Loop(
        mirrored(2), host, lambda: host.LAMB(0.01, use_ema=True)
    )
    loop.optimizer.finalize_variable_values(list(loop.variables.values()))
    replicated.assert_same(replicated.start(), loop.weights(), rtol=0, atol=0)
