"""An overflow on any one replica skips the step on all of them."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import lamb_tf.keras
from tests.lamb_tf import replicated
from tests.lamb_tf.conftest import HOSTS
from tests.lamb_tf.models import X, Y, model_of, optimizer_of

KERAS, TF_KERAS = HOSTS["keras"], HOSTS["tf_keras"]
WRAPPERS = {
    "keras": (KERAS, KERAS.keras.optimizers.LossScaleOptimizer),
    "ours": (KERAS, lamb_tf.keras.LossScaleOptimizer),
    "tf_keras": (TF_KERAS, TF_KERAS.keras.mixed_precision.LossScaleOptimizer),
}
QUIETLY = pytest.mark.filterwarnings("ignore:Keras's `LossScaleOptimizer`")


def scale_of(optimizer):
    if hasattr(optimizer, "loss_scale"):
        return float(optimizer.loss_scale)
    return float(tf.convert_to_tensor(optimizer.dynamic_scale))


def state_of(optimizer):
    """Returns everything but the loss scale and its counter."""
    inner = optimizer.inner_optimizer
    values = [tf.convert_to_tensor(v).numpy() for v in inner.variables]
    return [*values, inner.trust_table().numpy()]


class Step:
    """A wrapped optimizer, and a step that can overflow on one replica."""

    def __init__(self, strategy, wrapper, wrap, name="LAMB", **arguments):
        host, wrapping = WRAPPERS[wrapper]
        with strategy.scope():
            self.w = host.variable([3.0, 4.0], "w")
            self.optimizer = wrapping(
                getattr(host, name)(
                    0.1,
                    weight_decay=0.1,
                    use_ema=True,
                    ema_momentum=0.5,
                    **arguments,
                ),
                initial_scale=1024.0,
            )
            self.optimizer.build([self.w])

        def replica(bad):
            context = tf.distribute.get_replica_context()
            here = tf.equal(context.replica_id_in_sync_group, bad)
            grad = tf.where(here, np.inf, tf.constant([1.0, 2.0]))
            self.optimizer.apply_gradients([(1024.0 * grad, self.w)])

        self._step = wrap(lambda bad: strategy.run(replica, args=(bad,)))

    def __call__(self, bad=-1):
        self._step(tf.constant(bad))

    def state(self):
        weights = tf.convert_to_tensor(self.w).numpy()
        return [weights, *state_of(self.optimizer)]


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@QUIETLY
@pytest.mark.filterwarnings("ignore:You forgot to call")
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("wrap", "bad"),
    [(tf.function, 0), (tf.function, 1), (replicated.wrap_eager, 1)],
)
def test_an_overflow_on_one_replica_skips_the_step(
    replicas, wrapper, wrap, bad
):
    step = Step(replicas, wrapper, wrap)
    step()
    before = step.state()
    step(bad)
    assert_equal(step.state(), before)
    assert int(tf.convert_to_tensor(step.optimizer.iterations)) == 1
    seen = bad == 0 or wrapper != "keras"
    assert scale_of(step.optimizer) == (512.0 if seen else 1024.0)
    step()
    assert int(tf.convert_to_tensor(step.optimizer.iterations)) == 2
    assert np.isfinite(np.concatenate([v.ravel() for v in step.state()])).all()


@QUIETLY
@pytest.mark.filterwarnings("ignore:You forgot to call")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_skipped_step_leaves_no_trace_in_the_next(mirrored, wrapper):
    """Neither in the bias correction nor in the schedule."""
    arguments = {"name": "LARS"} if wrapper == "keras" else {}
    smooth = Step(mirrored(4), wrapper, tf.function, **arguments)
    bumpy = Step(mirrored(4), wrapper, tf.function, **arguments)
    # On the last replica the scale of Keras's wrapper stays what it was.
    for bad in (-1, 3, -1):
        bumpy(bad)
    for _ in range(2):
        smooth()
    if scale_of(bumpy.optimizer) == scale_of(smooth.optimizer):
        assert_equal(bumpy.state(), smooth.state())
    else:
        iterations = bumpy.optimizer.iterations
        assert int(tf.convert_to_tensor(iterations)) == 2


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.filterwarnings("ignore:You forgot to call")
def test_an_overflow_on_one_device_skips_the_step(mirrored, wrapper):
    step = Step(mirrored(0), wrapper, tf.function)
    step()
    before = step.state()
    step(0)
    assert_equal(step.state(), before)
    assert scale_of(step.optimizer) == 512.0


@QUIETLY
@pytest.mark.parametrize("wrapper", ["keras", "ours"])
@pytest.mark.parametrize("bad", [0, 1])
def test_an_overflow_amid_an_accumulation_skips_the_micro_step(
    replicas, wrapper, bad
):
    step = Step(replicas, wrapper, tf.function, gradient_accumulation_steps=2)
    step()
    before = step.state()
    step(bad)
    assert_equal(step.state(), before)
    step()
    assert int(tf.convert_to_tensor(step.optimizer.iterations)) == 1


def test_keras_wrapper_is_warned_of_once_and_ours_never(replicas):
    with pytest.warns(UserWarning) as caught:
        step = Step(replicas, "keras", tf.function)
        step()
        step(1)
    names = [w for w in caught if "lamb_tf.keras.LossScale" in str(w.message)]
    assert len(names) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        Step(replicas, "ours", tf.function)()


@QUIETLY
@pytest.mark.parametrize(
    ("host", "own", "bad"),
    [
        pytest.param(KERAS, False, 0, marks=pytest.mark.slow),
        (KERAS, False, 1),
        pytest.param(KERAS, True, 1, marks=pytest.mark.slow),
        (TF_KERAS, False, 1),
    ],
    ids=["keras-0", "keras-1", "ours-1", "tf_keras-1"],
)
def test_fit_in_float16_skips_what_overflows_on_one_replica(
    replicas, host, own, bad
):
    """By the wrapper that `compile` chooses, or by our `own`."""
    host.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with replicas.scope():
            optimizer = optimizer_of(host, use_ema=True)
            if own:
                optimizer = lamb_tf.keras.LossScaleOptimizer(optimizer)
            model = model_of(host, optimizer)
        # Small: nothing but the bad row overflows, at the first scale.
        x, y = X[:8].copy(), 0.01 * Y[:8]

        def fit():
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            weights = [np.array(w) for w in model.get_weights()]
            return [*weights, *state_of(model.optimizer)]

        state = fit()
        scale = scale_of(model.optimizer)
        x[4 * bad] = 6e4  # Its sums are infinite in float16.
        again = fit()
    finally:
        host.keras.mixed_precision.set_global_policy("float32")
    assert_equal(again, state)
    seen = own or host is TF_KERAS or bad == 0
    assert scale_of(model.optimizer) == (scale / 2 if seen else scale)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.filterwarnings("ignore:You forgot to call")
def test_a_sparse_gradient_is_scaled_and_checked(mirrored, wrapper):
    host, wrapping = WRAPPERS[wrapper]
    table = host.variable([[1.0, 2.0], [3.0, 4.0]], "table")
    optimizer = wrapping(host.LAMB(0.1), initial_scale=4.0)
    optimizer.build([table])

    @tf.function
    def step(value):
        slices = tf.IndexedSlices(
            value * tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([2, 2])
        )
        optimizer.apply_gradients([(slices, table)])

    step(np.inf)
    start = tf.convert_to_tensor(table).numpy()
    np.testing.assert_array_equal(start, [[1.0, 2.0], [3.0, 4.0]])
    step(4.0)
    plain = host.variable([[1.0, 2.0], [3.0, 4.0]], "table")
    dense = tf.constant([[0.0, 0.0], [2.0, 2.0]])
    if wrapper == "tf_keras":
        dense = 4.0 * dense  # It leaves the unscaling to the loop.
    else:
        dense = 2.0 * dense  # The overflow has halved the scale.
    host.LAMB(0.1).apply_gradients([(dense, plain)])
    np.testing.assert_allclose(
        tf.convert_to_tensor(table), tf.convert_to_tensor(plain), rtol=2.4e-7
    )


def test_a_fixed_scale_cancels_on_replicas(mirrored):
    def train(count, **arguments):
        loop = replicated.Loop(
            mirrored(count),
            KERAS,
            lambda: KERAS.LAMB(0.02, global_clipnorm=1.0, **arguments),
        )
        loop.loss_factor = arguments.get("loss_scale_factor", 1.0)
        return loop.train()

    # A power of two is exact.
    replicated.assert_same(
        train(2), train(2, loss_scale_factor=1024.0), rtol=0.0, atol=0.0
    )


def test_an_optimizer_on_its_own_checks_nothing(mirrored):
    def checks(wrapped):
        def make():
            optimizer = KERAS.LAMB(0.02)
            if wrapped:
                KERAS.keras.optimizers.LossScaleOptimizer(optimizer)
            return optimizer

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = replicated.Loop(mirrored(2), KERAS, make).graph()
        return [op for op in graph.get_operations() if op.type == "IsFinite"]

    assert len(checks(False)) == 0 < len(checks(True))
