"""Real prepared data, small: 400 leads of Wikipedia articles."""

import json

import pytest

from bert_pretrain import prepare
from bert_pretrain.config import BertEncoder, Config, Phase
from bert_pretrain.data import corpus
from bert_pretrain.data.config import PrepareConfig

LENGTHS = (32, 64)
SHARDS = 4


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder prepared for lengths 32 and 64, in 4 shards."""
    folder = tmp_path_factory.mktemp("prepared")
    leads = json.load(open(corpus.embedded_sources()[1].paths[0])).values()
    text = folder / "articles.jsonl"
    text.write_text(
        "\n".join(
            json.dumps({"text": lead["extract"]}) for lead in list(leads)[:400]
        )
    )
    output = folder / "data"
    prepare.prepare(
        PrepareConfig(
            output_dir=str(output),
            input_file=(str(text),),
            input_format="jsonl",
            seq_lengths=LENGTHS,
            num_shards=SHARDS,
            random_seed=7,
            # Sequences of very different lengths, so of different counts.
            short_seq_prob=0.9,
        )
    )
    return str(output)


@pytest.fixture
def recipe(prepared) -> Config:
    """Two phases of a few steps of a tiny model, with dropout."""
    config = Config()
    config.task.model.encoder.bert = BertEncoder(
        hidden_size=16,
        num_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    config.task.data.input_path = prepared
    config.trainer.phases = [
        Phase(
            name=name,
            seq_length=length,
            max_predictions_per_seq=width,
            global_batch_size=batch,
            train_steps=steps,
            learning_rate=rate,
            warmup_steps=warmup,
        )
        for name, length, width, batch, steps, rate, warmup in (
            ("phase1", 32, 5, 16, 8, 0.02, 2),
            ("phase2", 64, 10, 8, 6, 0.01, 1),
        )
    ]
    config.trainer.steps_per_loop = 2
    config.trainer.checkpoint_interval = 2
    config.trainer.eval_batch_size = 16
    return config
