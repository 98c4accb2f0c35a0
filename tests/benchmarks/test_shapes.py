"""The parameter lists against the models they stand for."""

import math

import keras
import pytest
from official.nlp.modeling import models, networks

from benchmarks import shapes


def test_resnet50_is_that_of_keras():
    model = keras.applications.ResNet50(weights=None)
    # Keras orders the shortcut among the others; order costs nothing.
    assert sorted(shapes.resnet50()) == sorted(
        tuple(v.shape) for v in model.trainable_variables
    )


@pytest.mark.parametrize("hidden, layers, heads", [(768, 12, 12), (64, 3, 2)])
def test_bert_is_that_of_tf_models_but_for_the_pooler(hidden, layers, heads):
    encoder = networks.BertEncoder(
        vocab_size=30522,
        type_vocab_size=2,
        hidden_size=hidden,
        num_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    model = models.BertPretrainer(
        encoder, num_classes=2, num_token_predictions=20
    )
    # tf-models keeps attention kernels by head, and has a pooler.
    real = [
        math.prod(v.shape)
        for v in model.trainable_variables
        if "pooler" not in v.name
    ]
    listed = [math.prod(s) for s in shapes.bert(hidden, layers)]
    assert sorted(real) == sorted(listed)


@pytest.mark.parametrize(
    "model, variables, millions",
    [
        ("bert_base", 204, 109.52),
        ("bert_large", 396, 335.17),
        ("resnet50", 214, 25.58),
    ],
)
def test_sizes(model, variables, millions):
    found = shapes.MODELS[model]()
    assert len(found) == variables
    assert shapes.parameters(found) / 1e6 == pytest.approx(millions, abs=0.01)
