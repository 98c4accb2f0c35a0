import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain.config import BertEncoder, Encoder, Model
from bert_pretrain.modeling import dropout, pretrainer


def _drop(first, rows=8, rate=0.1, key=1, shape=(64, 5), stream=0):
    layer = dropout.ExampleDropout(rate, key)
    with dropout.keyed_by(stream, tf.constant(first, tf.int64)):
        return layer(tf.ones((rows, *shape)), training=True).numpy()


def test_the_mask_belongs_to_the_example():
    whole = _drop(0, 8)
    np.testing.assert_array_equal(whole[3:5], _drop(3, 2))
    assert (whole != _drop(8, 8)).any()
    assert (whole != _drop(0, 8, key=2)).any()
    assert (whole != _drop(0, 8, stream=1)).any()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_rate_and_scale(rate):
    values = _drop(0, 64, rate, shape=(1000,))
    n = values.size
    share = (values == 0).mean()
    assert abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / n)
    # Kept values are scaled so that the expectation stays.
    np.testing.assert_allclose(values[values > 0], 1 / (1 - rate), rtol=1e-4)


def test_nothing_is_dropped_outside_training():
    layer = dropout.ExampleDropout(0.5, 1)
    np.testing.assert_array_equal(layer(tf.ones((4, 4)), training=False), 1)


def test_training_outside_the_scope_is_an_error():
    with pytest.raises(RuntimeError, match="keyed_by"):
        dropout.ExampleDropout(0.5, 1)(tf.ones((4, 4)), training=True)


def test_every_dropout_of_the_model_is_replaced():
    bert = BertEncoder(
        vocab_size=50,
        hidden_size=8,
        num_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    model = pretrainer.build_model(Model(encoder=Encoder(bert=bert)), seed=0)
    kinds = [type(layer).__name__ for layer in model.submodules]
    assert "Dropout" not in kinds
    # Embedding, head; attention probabilities, attention output, inner and
    # output of each of the two blocks.
    assert kinds.count("ExampleDropout") == 2 + 4 * 2
    keys = {
        layer._key
        for layer in model.submodules
        if isinstance(layer, dropout.ExampleDropout)
    }
    assert len(keys) == 10, "no two layers drop the same values"
