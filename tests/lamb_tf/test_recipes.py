import dataclasses

import pytest

from lamb_tf import recipes

# arXiv:1904.00962v5, section 4: batch, k, warm-up ratio, warm-up epochs.
TABLE = [
    (512, 3.0, 1 / 320, 0.3125, 1_000_000),
    (1024, 2.5, 1 / 160, 0.625, 500_000),
    (2048, 2.0, 1 / 80, 1.25, 250_000),
    (4096, 1.5, 1 / 40, 2.5, 125_000),
    (8192, 1.0, 1 / 20, 5, 62_500),
    (16384, 0.5, 1 / 10, 10, 31_250),
    (32768, 0.0, 1 / 5, 20, 15_625),
]


@pytest.mark.parametrize(("batch", "k", "ratio", "epochs", "steps"), TABLE)
def test_table(batch, k, ratio, epochs, steps):
    bert = recipes.bert(batch)
    assert bert.learning_rate == pytest.approx(5 / (2**k * 1e3), rel=1e-12)
    assert bert.warmup_ratio == pytest.approx(ratio, rel=1e-12)
    assert bert.total_steps == steps
    assert bert.warmup_steps == 3125
    assert bert.batch_size == batch
    imagenet = recipes.imagenet(batch)
    assert imagenet.learning_rate == pytest.approx(4 / (2**k * 100), rel=1e-12)
    assert imagenet.warmup_ratio == pytest.approx(epochs / 90, rel=1e-12)
    assert imagenet.warmup_steps == 782


def test_the_run_of_the_authors_code():
    imagenet = recipes.imagenet(32768)
    assert imagenet.total_steps == 3519
    assert imagenet.weight_decay == 1.5


def test_defaults_are_the_papers():
    bert = recipes.bert(32768)
    assert (
        dataclasses.asdict(bert).items()
        >= {
            "beta_1": 0.9,
            "beta_2": 0.999,
            "epsilon": 1e-6,
            "weight_decay": 0.01,
            "power": 1.0,
        }.items()
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        bert.learning_rate = 1.0


@pytest.mark.parametrize("batch", [0, -1, 32.0, True, 163841])
def test_bad_batch(batch):
    with pytest.raises(ValueError, match=f"`batch_size`.*{batch}"):
        recipes.bert(batch)
