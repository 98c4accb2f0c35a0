"""The learning rates of the recipes, over the global step."""

import pathlib

import numpy as np

from bert_pretrain import config as config_lib
from bert_pretrain.training.run import make_schedule

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"


def _rates(recipe, steps):
    schedule = make_schedule(config_lib.load(str(CONFIGS / recipe)))
    return [float(schedule(step)) for step in steps]


def test_the_mixed_batch_warms_up_again_from_zero():
    rates = _rates(
        "bert_large_64k_32k.yaml", [0, 1000, 2000, 7037, 7137, 7237, 8599]
    )
    np.testing.assert_allclose(
        rates, [0, 3e-3, 6e-3, 0, 2e-3, 4e-3, 0], atol=1e-9
    )


def test_the_32k_row_has_one_schedule_through_both_lengths():
    steps = np.array([0, 1000, 3125, 9000, 14062, 14063, 15000, 15625])
    one = np.where(
        steps < 3125, 5e-3 * steps / 3125, 5e-3 * (15625 - steps) / 12500
    )
    np.testing.assert_allclose(
        _rates("bert_large_32k.yaml", steps), one, rtol=1e-5, atol=1e-9
    )
