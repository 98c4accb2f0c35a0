"""The problem that the exactness tests solve, and how they measure."""

import numpy as np
import tensorflow as tf

STEPS = 10
WEIGHT_DECAY = 0.1
SHAPES = {
    "dense/kernel": (24, 10),  # Spectral and Frobenius norms differ.
    "wide/kernel": (3, 400),
    "dense/gamma": (24, 10),  # Excluded from decay.
    "dense/free": (10,),  # Excluded from adaptation.
    "dense/zero": (12, 7),  # Starts at zero.
    "dense/still": (12, 7),  # Has a zero gradient.
    "dense/gamma_still": (5,),  # Zero update: no decay, no gradient.
    "scale": (),
}
NOT_DECAYED = ["gamma"]
NOT_ADAPTED = ["free"]


def make(seed=0, shapes=SHAPES, steps=STEPS):
    """Returns initial weights and the gradients of each step."""
    rng = np.random.default_rng(seed)

    def draw(name, shape, scale):
        return np.asarray(rng.normal(0, scale, shape), np.float32)

    weights = {k: draw(k, s, 0.5) for k, s in shapes.items()}
    for k in weights:
        if "zero" in k:
            weights[k] = np.zeros_like(weights[k])
    gradients = [
        {
            k: np.zeros(s, np.float32) if "still" in k else draw(k, s, 0.1)
            for k, s in shapes.items()
        }
        for _ in range(steps)
    ]
    return weights, gradients


def train(host, optimizer, weights, gradients, run=lambda step: step):
    """Returns the weights after all steps, by name."""
    variables = {
        k: host.variable(w, k.replace("/", "_")) for k, w in weights.items()
    }

    def step(grads):
        optimizer.apply_gradients([(grads[k], variables[k]) for k in variables])

    step = run(step)
    for grads in gradients:
        step({k: tf.constant(g) for k, g in grads.items()})
    return {k: np.array(tf.convert_to_tensor(v)) for k, v in variables.items()}


def assert_same_displacement(start, end, expected, steps=STEPS, rtol=1e-5):
    """Compares displacements, beyond one rounding of the weights a step."""
    for k in start:
        moved = np.float64(end[k]) - np.float64(start[k])
        should = expected[k] - np.float64(start[k])
        size = max(np.linalg.norm(start[k]), np.linalg.norm(expected[k]))
        rounding = steps * 2.0**-24 * size
        error = np.linalg.norm(moved - should)
        allowed = rtol * np.linalg.norm(should) + rounding
        assert error <= allowed, (
            f"{k}: off by {error:.3g}, allowed {allowed:.3g}"
        )
