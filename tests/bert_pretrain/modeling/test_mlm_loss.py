import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain.modeling.mlm_loss import mlm_sums

N, WIDTH, VOCAB = 1200, 16, 300


def _inputs(dtype=np.float64):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(N, WIDTH)).astype(dtype)
    table = rng.normal(size=(VOCAB, WIDTH)).astype(dtype)
    bias = rng.normal(size=VOCAB).astype(dtype)
    labels = (hidden @ table.T + bias).argmax(1)
    labels[::2] = rng.integers(0, VOCAB, N // 2)  # Half hits, half misses.
    labels[::5] = labels[0]  # A frequent token.
    return {
        "hidden": hidden,
        "table": table,
        "bias": bias,
        "labels": labels,
        # Some predictions are unused.
        "weights": (rng.random(N) < 0.8) / N,
    }


def _reference(hidden, table, bias, labels, weights):
    """Cross-entropy and its gradients in float64 NumPy."""
    logits = hidden @ table.T + bias
    logits -= logits.max(1, keepdims=True)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -(weights * np.log(softmax[np.arange(N), labels])).sum()
    error = softmax.copy()
    error[np.arange(N), labels] -= 1
    error *= weights[:, np.newaxis]
    hits = (weights * (logits.argmax(1) == labels)).sum()
    return loss, hits, error @ table, error.T @ hidden, error.sum(0)


def _tensors():
    values = _inputs()
    return [
        tf.cast(values[name], tf.float32)
        for name in ("hidden", "table", "bias")
    ], (
        tf.cast(values["labels"], tf.int32),
        tf.cast(values["weights"], tf.float32),
    )


def _ours(dtype, transform=lambda f: f):
    tensors, others = _tensors()

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            sums = mlm_sums(*tensors, *others, dtype)
        return *sums, *tape.gradient(sums.loss, tensors)

    return [tf.cast(x, tf.float64).numpy() for x in transform(compute)()]


@pytest.mark.parametrize(
    # bfloat16 logits of up to 16 are off by up to 0.03.
    ("dtype", "tolerance"),
    [(tf.float32, 1e-5), (tf.bfloat16, 2e-2)],
)
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_loss_and_gradients_against_float64(dtype, tolerance, mode):
    transform = {
        "eager": lambda f: f,
        "graph": tf.function,
        "xla": tf.function(jit_compile=True),
    }[mode]
    want = _reference(**_inputs())
    names = ("loss", "hits", "hidden", "table", "bias")
    for name, ours, reference in zip(
        names, _ours(dtype, transform), want, strict=True
    ):
        scale = np.abs(reference).max()
        error = np.abs(ours - reference).max() / scale
        assert error <= tolerance, (name, error)


def test_the_check_can_fail():
    values = _inputs()
    values["bias"] = values["bias"] + 0.01 * np.arange(VOCAB)
    loss, *_ = _reference(**values)
    assert abs(loss - _ours(tf.float32)[0]) > 1e-3


def test_the_loss_scale_reaches_every_gradient():
    tensors, others = _tensors()
    gradients = []
    for scale in (1.0, 1024.0):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = scale * mlm_sums(*tensors, *others).loss
        gradients.append(tape.gradient(loss, tensors))
    for plain, scaled in zip(*gradients, strict=True):
        np.testing.assert_array_equal(plain * 1024.0, scaled)


def test_a_frequent_tokens_row_is_not_short_in_bfloat16():
    """Summed in bfloat16, it would be one or two per cent short."""
    row = _inputs()["labels"][0]
    want = _reference(**_inputs())[3][row]
    got = _ours(tf.bfloat16)[3][row]
    along = (got * want).sum() / (want * want).sum()
    assert abs(along - 1) < 2e-3
