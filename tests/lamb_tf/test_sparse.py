"""`tf.IndexedSlices` with duplicate ids, clipped, scaled, accumulated."""

import numpy as np
import pytest
import tensorflow as tf

from tests.lamb_tf import problems, reference
from tests.lamb_tf.conftest import HOSTS

SHAPE = (6, 4)
IDS = [1, 3, 1, 5, 1]
STEPS = 4
CLIPS = [
    {},
    {"global_clipnorm": 0.5},
    {"clipnorm": 0.3},
    {"clipvalue": 0.2},
]
MORE = {
    "keras": [
        {},
        {"loss_scale_factor": 8.0, "gradient_accumulation_steps": 2},
    ],
    "tf_keras": [{}],
}
# The ratio, and LAMB's default epsilon, would hide the size of a gradient.
COMMON = {
    "LAMB": {"epsilon": 0.1},
    "LARS": {"exclude_from_layer_adaptation": ["dense"]},
}
RATE, DECAY = 0.1, 0.1


def draw():
    """Returns the weights, the slices of each step and dense gradients."""
    rng = np.random.default_rng(0)
    weights = {k: rng.normal(size=SHAPE) for k in ("table", "dense")}
    weights = {k: np.float32(w) for k, w in weights.items()}
    values = [np.float32(rng.normal(size=(5, 4))) for _ in range(STEPS)]
    others = [np.float32(rng.normal(size=SHAPE)) for _ in range(STEPS)]
    return weights, values, others


def summed(values):
    total = np.zeros(SHAPE)
    np.add.at(total, IDS, np.float64(values))
    return total


def train(host, algorithm, options, sparse, mode, dtype="float32"):
    """Returns the weights, the state, and the last ratio and norms."""
    weights, values, others = draw()
    variables = {k: host.variable(w, k, dtype) for k, w in weights.items()}
    optimizer = getattr(host, algorithm)(
        RATE, weight_decay=DECAY, **COMMON[algorithm], **options
    )
    if host.name == "tf_keras" and mode == "graph":
        optimizer = type(optimizer)(
            **{**optimizer.get_config(), "jit_compile": False}
        )
    optimizer.build(list(variables.values()))

    def step(values, other):
        gradient = tf.IndexedSlices(
            values, tf.constant(IDS, tf.int64), tf.constant(SHAPE, tf.int64)
        )
        if not sparse:
            gradient = tf.convert_to_tensor(gradient)
        optimizer.apply_gradients(
            [(gradient, variables["table"]), (other, variables["dense"])]
        )

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "xla")
    for value, other in zip(values, others, strict=True):
        step(tf.cast(value, dtype), tf.cast(other, dtype))
    state = [*variables.values(), *optimizer.variables]
    trusts = [part for trust in optimizer.trusts.values() for part in trust]
    return [
        np.array(tf.cast(tf.convert_to_tensor(v), "float32"))
        for v in [*state, *trusts]
    ]


def clipped(gradients, global_clipnorm=None, clipnorm=None, clipvalue=None):
    if global_clipnorm:
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        factor = min(1.0, global_clipnorm / norm)
        return {k: g * factor for k, g in gradients.items()}
    if clipnorm:
        return {
            k: g * min(1.0, clipnorm / np.linalg.norm(g))
            for k, g in gradients.items()
        }
    if clipvalue:
        return {
            k: np.clip(g, -clipvalue, clipvalue) for k, g in gradients.items()
        }
    return gradients


def expected(
    algorithm, loss_scale_factor=1.0, gradient_accumulation_steps=1, **clip
):
    weights, values, others = draw()
    micro = [
        {"table": summed(v) / loss_scale_factor, "dense": o / loss_scale_factor}
        for v, o in zip(values, others, strict=True)
    ]
    n = gradient_accumulation_steps
    means = [
        {k: sum(g[k] for g in micro[i : i + n]) / n for k in weights}
        for i in range(0, STEPS, n)
    ]
    gradients = [clipped(g, **clip) for g in means]
    rates = [RATE] * len(gradients)
    options = {"weight_decay": DECAY}
    if algorithm == "LAMB":
        options["epsilon"] = 0.1
        return weights, reference.lamb(weights, gradients, rates, **options)
    options["not_adapted"] = ["dense"]
    return weights, reference.lars(weights, gradients, rates, **options)


CASES = [
    (host, algorithm, {**clip, **more})
    for host in HOSTS
    for algorithm in COMMON
    for clip in CLIPS
    for more in MORE[host]
]


@pytest.mark.parametrize(("host_name", "algorithm", "options"), CASES, ids=str)
def test_sparse_gradient_equals_the_dense_one(host_name, algorithm, options):
    """In weights, moments, accumulators, ratios and norms."""
    host = HOSTS[host_name]
    sparse = train(host, algorithm, options, True, "graph")
    dense = train(host, algorithm, options, False, "graph")
    for a, b in zip(sparse, dense, strict=True):
        np.testing.assert_array_equal(a, b)
    weights, should = expected(algorithm, **options)
    ends = dict(zip(weights, sparse, strict=False))
    problems.assert_same_displacement(weights, ends, should, STEPS)


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("algorithm", COMMON)
def test_in_other_modes(host, algorithm, mode):
    sparse = train(host, algorithm, CLIPS[1], True, mode)
    weights, should = expected(algorithm, **CLIPS[1])
    ends = dict(zip(weights, sparse, strict=False))
    problems.assert_same_displacement(weights, ends, should, STEPS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_duplicates_are_summed_in_float32(host, dtype):
    # 256 + 1 + 1 stays 256 in bfloat16, and so do 2048 + 1 + 1 in float16.
    large = {"bfloat16": 256.0, "float16": 2048.0}[dtype]
    w = host.variable(tf.ones([2]), "w", dtype)
    optimizer = host.LARS(0.1, momentum=0.0)
    values = tf.cast([large, 1.0, 1.0], dtype)
    gradient = tf.IndexedSlices(values, tf.constant([0, 0, 0]), [2])
    optimizer.apply_gradients([(gradient, w)])
    slots = [v.numpy() for v in optimizer.variables if len(v.shape)]
    (m,) = (slot for slot in slots if slot[1] == 0.0)
    np.testing.assert_array_equal(m, [large + 2.0, 0.0])


def test_no_ids_and_all_ids(host):
    w = host.variable(tf.ones([3]), "w")
    gradient = tf.IndexedSlices(tf.ones([0]), tf.constant([], tf.int32), [3])
    optimizer = host.LAMB(0.1)
    optimizer.apply_gradients([(gradient, w)])
    np.testing.assert_array_equal(w.numpy(), 1.0)
    optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([3]), [0, 1, 2]), w)])
    assert np.all(w.numpy() < 1.0)


@pytest.mark.parametrize("clip", CLIPS[1:], ids=str)
def test_keras_own_lamb_takes_no_duplicates(clip):
    """The control: it raises, or clips the pieces (keras 18985)."""
    host = HOSTS["keras"]
    ends = []
    for sparse in (True, False):
        w = host.variable(np.ones(SHAPE, "float32"), "w")
        optimizer = host.keras.optimizers.Lamb(0.1, epsilon=0.1, **clip)
        gradient = tf.IndexedSlices(tf.ones([5, 4]), IDS, SHAPE)
        if not sparse:
            gradient = tf.convert_to_tensor(gradient)
        try:
            optimizer.apply_gradients([(gradient, w)])
        except (AttributeError, TypeError, ValueError):
            assert sparse
            return
        ends.append(w.numpy())
    assert np.abs(ends[0] - ends[1]).max() > 1e-3
