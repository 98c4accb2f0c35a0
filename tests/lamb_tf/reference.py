"""LAMB and LARS in float64 NumPy, written from the papers alone."""

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
    nesterov=None,
    trust_clip=None,
    norm="l2",
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
            # The products over the steps so far, and over one more.
            one, one_more = 1 - beta_1**t, 1 - beta_1 ** (t + 1)
            two, two_more = 1 - beta_2**t, 1 - beta_2 ** (t + 1)
            if not bias_correction:
                one = one_more = two = two_more = 1.0
            if nesterov is None:
                m, v = m / one, v / two
            else:
                m = beta_1 * m / one_more + (1 - beta_1) * g / one
                if nesterov == "first":
                    v = beta_2 * v / two
                else:
                    v = beta_2 * v / two_more + (1 - beta_2) * g * g / two
            direction = m / (np.sqrt(v) + epsilon)
            decay = 0.0 if k in not_decayed else weight_decay
            if decay_inside:
                direction = direction + decay * w
            ratio = 1.0
            if k not in not_adapted:
                ratio = _ratio(w, _norm(direction, norm), trust_clip, norm)
            step = rate * ratio * direction
            if not decay_inside:
                step = step + rate * decay * w
            weights[k] = w - step
    return weights


def lars(
    weights,
    gradients,
    learning_rates,
    *,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=1.0,
    variant="paper",
    nesterov=False,
    not_decayed=(),
    not_adapted=(),
    trust_clip=None,
    norm="l2",
):
    """Returns the weights after `len(learning_rates)` steps, as `lamb`."""
    weights = {k: np.array(w, np.float64) for k, w in weights.items()}
    buffers = {k: np.zeros_like(w) for k, w in weights.items()}
    for index, rate in enumerate(learning_rates):
        for k, w in weights.items():
            decay = 0.0 if k in not_decayed else weight_decay
            g = np.array(gradients[index][k], np.float64)
            with_decay = g + decay * w

            def ratio(divisor, k=k, w=w):
                if k in not_adapted:
                    return 1.0
                return _ratio(w, divisor, trust_clip, norm, trust_coefficient)

            if variant == "paper":
                term = (1 - momentum) * with_decay
            else:
                divisor = _norm(g, norm) + decay * _norm(w, norm)
                term = rate * ratio(divisor) * with_decay
            buffers[k] = momentum * buffers[k] + term
            step = momentum * buffers[k] + term if nesterov else buffers[k]
            if variant == "paper":
                step = rate * ratio(_norm(step, norm)) * step
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


def _norm(x, norm):
    if norm == "linf":
        return float(abs(x).max())
    if norm == "l1":
        return float(abs(x).sum())
    return math.sqrt(float((x * x).sum()))


def _ratio(w, divisor, trust_clip, norm, coefficient=1.0):
    w_norm = _norm(w, norm)
    if w_norm == 0.0 or divisor == 0.0:
        return 1.0
    if trust_clip is not None:
        w_norm = min(max(w_norm, trust_clip[0]), trust_clip[1])
    return coefficient * w_norm / divisor
