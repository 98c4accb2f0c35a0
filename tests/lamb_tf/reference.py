"""LAMB in float64 NumPy, written from the paper and from nothing else."""

import math

import numpy as np


def lamb(
    weights,
    gradients,
    learning_rates,
    *,
    beta_1=0.9,
    beta_2=0.999,
    epsilon=1e-6,
    weight_decay=0.0,
    not_decayed=(),
    not_adapted=(),
    bias_correction=True,
    trust_clip=None,
    decay_inside=True,
):
    """Returns the weights after `len(learning_rates)` steps.

    `weights` maps names to arrays, `gradients` is one such mapping a
    step. `decay_inside=False` is the control: it subtracts
    `learning_rate * weight_decay * w` beside the ratio.
    """
    weights = {k: np.array(w, np.float64) for k, w in weights.items()}
    first = {k: np.zeros_like(w) for k, w in weights.items()}
    second = {k: np.zeros_like(w) for k, w in weights.items()}
    for index, rate in enumerate(learning_rates):
        t = index + 1
        for k, w in weights.items():
            g = np.array(gradients[index][k], np.float64)
            first[k] = beta_1 * first[k] + (1 - beta_1) * g
            second[k] = beta_2 * second[k] + (1 - beta_2) * g * g
            m, v = first[k], second[k]
            if bias_correction:
                m = m / (1 - beta_1**t)
                v = v / (1 - beta_2**t)
            direction = m / (np.sqrt(v) + epsilon)
            decay = 0.0 if k in not_decayed else weight_decay
            if decay_inside:
                direction = direction + decay * w
            ratio = 1.0
            if k not in not_adapted:
                ratio = _ratio(w, direction, trust_clip)
            step = rate * ratio * direction
            if not decay_inside:
                step = step + rate * decay * w
            weights[k] = w - step
    return weights


def warmup_polynomial(t, rate, warmup, total, power, end, peak):
    """Returns the schedule at `t` updates done, from its definition."""
    if t >= total:
        return end
    if peak == "configured":
        top, span = rate, total - warmup
    else:
        top = end + (rate - end) * ((total - warmup) / total) ** power
        span = total
    if t < warmup:
        return top * t / warmup
    return end + (rate - end) * ((total - t) / span) ** power


def _ratio(w, direction, trust_clip):
    w_norm = math.sqrt(float((w * w).sum()))
    norm = math.sqrt(float((direction * direction).sum()))
    if w_norm == 0.0 or norm == 0.0:
        return 1.0
    if trust_clip is not None:
        w_norm = min(max(w_norm, trust_clip[0]), trust_clip[1])
    return w_norm / norm
