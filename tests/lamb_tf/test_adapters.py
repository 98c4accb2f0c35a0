"""Both optimizers at work: fit and checkpoints."""

import numpy as np
import pytest

from tests.lamb_tf.models import fit, model_of, weights_of

MODES = [
    {"jit_compile": False},
    {"jit_compile": True},
    {"run_eagerly": True},
    {"jit_compile": "auto"},
]


def test_fit_in_every_mode(host):
    results = []
    for mode in MODES:
        if host.name == "tf_keras" and mode == {"jit_compile": "auto"}:
            mode = {"jit_compile": None}
        model = model_of(host, **mode)
        losses = fit(model, 6)
        assert losses[-1] < losses[0]
        assert int(model.optimizer.iterations) == 24
        results.append(weights_of(model))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_fit_in_mixed_precision(host, policy):
    host.keras.mixed_precision.set_global_policy(policy)
    try:
        model = model_of(host)
        losses = fit(model, 6)
    finally:
        host.keras.mixed_precision.set_global_policy("float32")
    assert losses[-1] < losses[0]
    assert all(w.dtype == np.float32 for w in weights_of(model))
