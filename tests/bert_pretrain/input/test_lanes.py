import numpy as np
import pytest

from bert_pretrain.data.records import Records
from bert_pretrain.input import lanes

LANES, PER_LANE, BATCH = 4, 30, 16


def _shards():
    """Every example carries its own number, lane * PER_LANE + record."""
    numbers = np.arange(LANES * PER_LANE).reshape(LANES, PER_LANE)
    return {
        lane: Records(row[:, np.newaxis], np.stack([row, row], 1), row)
        for lane, row in enumerate(numbers)
    }


def _batch(step, rows=slice(0, BATCH), seed=7):
    order = lanes.LaneOrder(PER_LANE, LANES, BATCH, seed)
    return lanes.gather(_shards(), order, step, rows).labels


def test_an_epoch_visits_every_example_once():
    steps = LANES * PER_LANE // BATCH * 2  # Two epochs, 7.5 steps each.
    seen = np.concatenate([_batch(step) for step in range(steps + 1)])
    first, second = np.split(
        np.concatenate(
            [
                seen.reshape(-1, LANES, BATCH // LANES)
                .transpose(1, 0, 2)
                .reshape(LANES, -1)[:, : 2 * PER_LANE]
            ]
        ),
        2,
        axis=1,
    )
    everything = np.arange(LANES * PER_LANE)
    np.testing.assert_array_equal(np.sort(first.ravel()), everything)
    np.testing.assert_array_equal(np.sort(second.ravel()), everything)
    assert (first != second).any(), "each epoch has an order of its own"


def test_each_lane_has_an_equal_share():
    lane = _batch(3) // PER_LANE
    np.testing.assert_array_equal(lane, np.repeat(range(LANES), 4))


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16])
def test_any_split_into_replicas_covers_the_same_batch(parts):
    size = BATCH // parts
    split = [_batch(5, slice(i, i + size)) for i in range(0, BATCH, size)]
    np.testing.assert_array_equal(np.concatenate(split), _batch(5))


def test_order_depends_on_seed_and_lane_alone():
    np.testing.assert_array_equal(_batch(2), _batch(2))
    assert (_batch(2) != _batch(2, seed=8)).any()
    within = _batch(0).reshape(LANES, -1) % PER_LANE
    assert (within[0] != within[1]).any()


def test_lanes_that_cannot_share_the_batch():
    with pytest.raises(ValueError, match="18 .*4 shards"):
        lanes.LaneOrder(PER_LANE, LANES, 18, 0)
