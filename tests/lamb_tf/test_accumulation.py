"""`gradient_accumulation_steps` of Keras 3, on one device and on replicas."""

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf import replicated
from tests.lamb_tf.conftest import HOSTS
from tests.lamb_tf.models import fit, model_of, optimizer_of, weights_of

HOST = HOSTS["keras"]
# Sums in another order: a few roundings of weights of size 1.
ROUNDINGS = {"rtol": 5e-7, "atol": 5e-7}


def make(micro_steps=None, name="LAMB", **arguments):
    return lambda: getattr(HOST, name)(
        WarmupPolynomialDecay(0.05, 2, 8),
        weight_decay=0.1,
        gradient_accumulation_steps=micro_steps,
        **arguments,
    )


def loop(strategy, micro_steps=None, wrap=tf.function, **arguments):
    return replicated.Loop(
        strategy,
        HOST,
        make(micro_steps, **arguments),
        micro_steps=micro_steps or 1,
        wrap=wrap,
    )


def averages(of):
    return dict(
        enumerate(
            of.value(a) for a in of.optimizer._model_variables_moving_average
        )
    )


@pytest.mark.parametrize(
    ("count", "wrap"),
    [
        (0, replicated.wrap_eager),
        (0, tf.function),
        (0, replicated.wrap_xla),
        (2, replicated.wrap_eager),
        (2, tf.function),
        (4, tf.function),
    ],
)
def test_micro_steps_end_where_whole_steps_do(mirrored, count, wrap):
    arguments = {
        "global_clipnorm": 2.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 3,
    }
    whole = loop(mirrored(0), **arguments)
    parts = loop(mirrored(count), 2, wrap, **arguments)
    # The schedule, the bias correction and the averages count updates.
    replicated.assert_same(whole.train(), parts.train(), **ROUNDINGS)
    replicated.assert_same(averages(whole), averages(parts), **ROUNDINGS)
    iterations = tf.convert_to_tensor(parts.optimizer.iterations)
    assert int(iterations) == replicated.STEPS


def test_micro_steps_of_lars_on_replicas(mirrored):
    replicated.assert_same(
        loop(mirrored(0), name="LARS").train(),
        loop(mirrored(2), 2, name="LARS").train(),
        **ROUNDINGS,
    )


def test_fit_by_micro_batches_ends_where_whole_batches_do(replicas):
    whole = model_of(HOST)
    with replicas.scope():
        parts = model_of(
            HOST, optimizer_of(HOST, gradient_accumulation_steps=2)
        )
    fit(whole, 1)
    fit(parts, 1, batch_size=4)
    for a, b in zip(weights_of(whole), weights_of(parts), strict=True):
        np.testing.assert_allclose(b, a, **ROUNDINGS)


@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        ("checkpoint", 2, 2),
        ("checkpoint", 0, 2),
        ("own variables", 2, 0),
    ],
)
def test_resumes_amid_an_accumulation(mirrored, tmp_path, form, before, after):
    x, y = replicated.data(2)
    first = loop(mirrored(before), 2)
    resumed = loop(mirrored(after), 2)
    # One update and a half, on other replicas than the other half.
    for rows in (slice(0, 4), slice(4, 8)):
        first.micro_step(x[0][rows], y[0][rows])
    first.micro_step(x[1][:4], y[1][:4])
    if form == "checkpoint":
        saved, loaded = (
            tf.train.Checkpoint(optimizer=each.optimizer, **each.variables)
            for each in (first, resumed)
        )
        loaded.restore(saved.save(str(tmp_path / "x"))).assert_consumed()
    else:
        store = {}
        first.optimizer.save_own_variables(store)
        resumed.optimizer.load_own_variables(store)
        for name, value in first.weights().items():
            resumed.variables[name].assign(value)
    resumed.micro_step(x[1][4:], y[1][4:])
    unbroken = loop(mirrored(0), 2)
    replicated.assert_same(unbroken.train(2), resumed.weights(), **ROUNDINGS)


def apply(strategy, optimizer, pairs, wrap):
    """Applies `(gradient or None, variable)` once for each replica."""

    def replica():
        optimizer.apply_gradients(pairs)

    wrap(lambda: strategy.run(replica))()


@pytest.mark.parametrize(
    ("count", "wrap"),
    [(0, tf.function), (2, replicated.wrap_eager), (2, tf.function)],
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_gradient_in_some_micro_steps_counts_in_its_update(
    mirrored, count, wrap
):
    strategy = mirrored(count)
    share = 1.0 / strategy.num_replicas_in_sync

    def variables():
        return [
            HOST.variable([3.0, 4.0], name)
            for name in ("always", "early", "late", "never")
        ]

    with strategy.scope():
        parts = variables()
        optimizer = make(2, global_clipnorm=1.0)()
        optimizer.build(parts)
    whole = variables()
    plain = make(global_clipnorm=1.0)()
    plain.build(whole)
    g = [tf.constant(v) for v in ([1.0, 2.0], [0.5, 1.0], [3.0, 2.0])]
    for _ in range(2):
        first, second = (
            [None if grad is None else grad * share for grad in grads]
            for grads in ([g[0], g[1], None, None], [g[2], None, g[2], None])
        )
        for grads in (first, second):
            pairs = list(zip(grads, parts, strict=True))
            apply(strategy, optimizer, pairs, wrap)
        means = [(g[0] + g[2]) / 2, g[1] / 2, g[2] / 2, None]
        plain.apply_gradients(zip(means, whole, strict=True))
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=5e-7)
    # Not even decayed.
    np.testing.assert_array_equal(parts[3].numpy(), [3.0, 4.0])


@pytest.mark.parametrize(
    ("count", "wrap"),
    [(0, tf.function), (2, replicated.wrap_eager), (2, tf.function)],
)
def test_sparse_gradients_accumulate(mirrored, count, wrap):
    strategy = mirrored(count)
    share = 1.0 / strategy.num_replicas_in_sync
    table = np.arange(8, dtype=np.float32).reshape(4, 2) + 1.0
    with strategy.scope():
        parts = HOST.variable(table, "table")
        optimizer = make(2)()
        optimizer.build([parts])
    whole = HOST.variable(table, "table")
    plain = make()()
    slices = [
        tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 2, 1])),
        tf.IndexedSlices(2.0 * tf.ones([2, 2]), tf.constant([0, 1])),
    ]
    for piece in slices:
        scaled = tf.IndexedSlices(share * piece.values, piece.indices)
        apply(strategy, optimizer, [(scaled, parts)], wrap)
    mean = tf.constant([[2.0] * 2, [4.0] * 2, [1.0] * 2, [0.0] * 2]) / 2.0
    plain.apply_gradients([(mean, whole)])
    np.testing.assert_allclose(parts.numpy(), whole.numpy(), rtol=2.4e-7)


def test_no_sum_over_replicas_before_the_update_is_due(mirrored):
    def sums(of):
        ops = of.graph().get_operations()
        return [op for op in ops if op.type.startswith("CollectiveReduce")]

    # Outside of the branch that is taken when an update is due.
    assert len(sums(loop(mirrored(2), 2))) == 0 < len(sums(loop(mirrored(2))))
