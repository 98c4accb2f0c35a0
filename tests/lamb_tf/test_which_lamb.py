"""The LAMBs of PyTorch, restated from their sources, beside ours.

docs/which_lamb.md names these tests. Read were NVIDIA/apex
(csrc/multi_tensor_lamb.cu at 06a83ce, apex/optimizers/fused_lamb.py at
16fadfe), cybertronai/pytorch-lamb at 0ec8b85, microsoft/DeepSpeed
(csrc/lamb/fused_lamb_cuda_kernel.cu at 06076c6, deepspeed/ops/lamb/
fused_lamb.py at 077e674) and huggingface/pytorch-image-models
(timm/optim/lamb.py at 1e19b29). All is float64: what differs is meant.
"""

import numpy as np
import pytest
import tensorflow as tf

RATE, STEPS = 0.05, 4
SHAPES = {"dense/kernel": (4, 3), "dense/bias": (3,)}


def moments(first, second, g, beta_1=0.9, beta_2=0.999):
    return (
        beta_1 * first + (1 - beta_1) * g,
        beta_2 * second + (1 - beta_2) * g * g,
    )


def guarded(w, u):
    w, u = np.linalg.norm(w), np.linalg.norm(u)
    return w / u if w and u else 1.0


def apex(t, w, g, m, v, decay, adapt_all=False):
    """FusedLAMB of apex, and timm's Lamb, after their clipping."""
    m, v = moments(m, v, g)
    u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
    ratio = guarded(w, u) if decay or adapt_all else 1.0
    return w - RATE * ratio * u, m, v


def nvlamb(*arguments):
    return apex(*arguments, adapt_all=True)


def pytorch_lamb(t, w, g, m, v, decay):
    m, v = moments(m, v, g)
    u = m / (np.sqrt(v) + 1e-6) + decay * w
    return w - RATE * np.linalg.norm(w) / np.linalg.norm(u) * u, m, v


def deepspeed(t, w, g, m, v, decay, corrected=True):
    m, v = moments(m, v, g)
    u = m / (np.sqrt(v) + 1e-8) + decay * w
    ratio = np.clip(guarded(w, u), 0.01, 10.0)
    rate = RATE
    if corrected:
        rate *= np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return w - rate * ratio * u, m, v


def deepspeed_uncorrected(*arguments):
    return deepspeed(*arguments, corrected=False)


def clipped(grads, limit):
    norm = np.sqrt(sum(np.sum(g * g) for g in grads.values()))
    scale = min(1.0, limit / norm)
    return {k: g * scale for k, g in grads.items()}


def problem(scale=0.5):
    rng = np.random.default_rng(0)

    def draw(size):
        return {k: rng.normal(0, size, s) for k, s in SHAPES.items()}

    # The gradients' global norm is above 1 at each step.
    return draw(scale), [draw(2.0) for _ in range(STEPS)]


def theirs(step, weights, gradients, decays, limit=None):
    weights = dict(weights)
    state = {
        k: (np.zeros_like(w), np.zeros_like(w)) for k, w in weights.items()
    }
    for t, grads in enumerate(gradients, 1):
        if limit:
            grads = clipped(grads, limit)
        for k, w in weights.items():
            weights[k], *state[k] = step(t, w, grads[k], *state[k], decays[k])
    return weights


def ours(host, weights, gradients, **arguments):
    variables = {
        k: host.variable(w, k.replace("/", "_"), "float64")
        for k, w in weights.items()
    }
    optimizer = host.LAMB(RATE, **arguments)
    for grads in gradients:
        optimizer.apply_gradients(
            [(tf.constant(grads[k]), variables[k]) for k in variables]
        )
    return {k: np.array(tf.convert_to_tensor(v)) for k, v in variables.items()}


def same(left, right):
    # The rate is float32 in either Keras.
    return all(np.allclose(left[k], right[k], rtol=0, atol=1e-8) for k in left)


DECAYS = {"dense/kernel": 0.01, "dense/bias": 0.0}
EXCLUDED = {"weight_decay": 0.01, "exclude_from_weight_decay": ["bias"]}


def test_apex_and_timm_clip_at_one_and_adapt_what_decays(host):
    weights, gradients = problem()
    peer = theirs(apex, weights, gradients, DECAYS, limit=1.0)
    assert same(
        ours(host, weights, gradients, **EXCLUDED, global_clipnorm=1.0), peer
    )
    # Neither is on by default here.
    assert not same(ours(host, weights, gradients, **EXCLUDED), peer)


def test_nvlamb_adapts_all(host):
    weights, gradients = problem()
    peer = theirs(nvlamb, weights, gradients, DECAYS, limit=1.0)
    arguments = {**EXCLUDED, "global_clipnorm": 1.0}
    adapted = {**arguments, "exclude_from_layer_adaptation": []}
    assert same(ours(host, weights, gradients, **adapted), peer)
    assert not same(ours(host, weights, gradients, **arguments), peer)


def test_apex_and_timm_without_decay_are_adam(host):
    weights, gradients = problem()
    peer = theirs(apex, weights, gradients, dict.fromkeys(SHAPES, 0.0))
    plain = ours(host, weights, gradients)
    nothing = ours(host, weights, gradients, exclude_from_layer_adaptation=[""])
    assert not same(plain, peer)
    assert same(nothing, peer)


def test_pytorch_lamb_is_the_papers_third_version(host):
    weights, gradients = problem()
    peer = theirs(pytorch_lamb, weights, gradients, dict.fromkeys(SHAPES, 0.01))
    arguments = {"weight_decay": 0.01, "bias_correction": False}
    assert same(ours(host, weights, gradients, **arguments), peer)
    assert not same(ours(host, weights, gradients, weight_decay=0.01), peer)


def test_pytorch_lamb_never_moves_zeros(host):
    weights, gradients = problem(scale=0.0)
    peer = theirs(pytorch_lamb, weights, gradients, DECAYS)
    assert not any(np.any(w) for w in peer.values())
    moved = ours(host, weights, gradients, bias_correction=False)
    assert all(np.all(w) for w in moved.values())


def test_deepspeed_corrects_the_bias_outside_the_ratio(host):
    weights, gradients = problem()
    decays = dict.fromkeys(SHAPES, 0.01)
    arguments = {"weight_decay": 0.01, "epsilon": 1e-8}
    peer = theirs(deepspeed, weights, gradients, decays)
    for corrected in (True, False):
        mine = ours(
            host, weights, gradients, **arguments, bias_correction=corrected
        )
        assert not same(mine, peer)
    # Without the correction, and within its bounds, it is ours.
    peer = theirs(deepspeed_uncorrected, weights, gradients, decays)
    assert same(mine, peer)


@pytest.mark.parametrize("scale", [1e-3, 1e2])
def test_deepspeed_bounds_the_ratio_itself(host, scale):
    weights, gradients = problem(scale)
    peer = theirs(deepspeed_uncorrected, weights, gradients, DECAYS)
    arguments = {**EXCLUDED, "bias_correction": False, "epsilon": 1e-8}
    mine = ours(
        host,
        weights,
        gradients,
        **arguments,
        exclude_from_layer_adaptation=[],
    )
    # Ours bounds |w|, as the paper's phi does, and by default nothing.
    assert not same(mine, peer)
