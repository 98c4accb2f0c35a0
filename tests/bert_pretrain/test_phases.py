import dataclasses

import pytest

from bert_pretrain import phases


@dataclasses.dataclass
class _Phase:
    train_steps: int
    global_batch_size: int


PAPER = [_Phase(7037, 65536), _Phase(1562, 32768)]


def test_spans_of_the_papers_mixed_batch():
    first, second = phases.spans(PAPER)
    assert (first.first_step, first.last_step) == (0, 7037)
    assert (second.first_step, second.last_step) == (7037, 8599)
    assert second.first_example == 7037 * 65536


@pytest.mark.parametrize(
    ("step", "phase"), [(0, 0), (7036, 0), (7037, 1), (8598, 1), (8599, None)]
)
def test_phase_is_a_function_of_the_step(step, phase):
    assert phases.phase_at(step, PAPER) == phase


def test_plan_multiplies_to_the_global_batch():
    plan = phases.plan_batch(65536, replicas=8, micro_batch_size=32)
    assert (plan.micro_batch_size, plan.accumulation_steps) == (32, 256)
    assert plan.per_replica * plan.replicas == 65536
    assert "32 per replica x 8 replicas x 256 accumulation steps" in str(plan)


def test_plan_without_a_micro_batch_takes_the_whole_share():
    plan = phases.plan_batch(64, replicas=2, micro_batch_size=None)
    assert (plan.micro_batch_size, plan.accumulation_steps) == (32, 1)


@pytest.mark.parametrize(
    ("batch", "replicas", "micro", "nearest"),
    [(65537, 8, 4, "65536, 65568"), (3, 8, None, "8"), (60, 1, 8, "56, 64")],
)
def test_a_batch_that_does_not_divide_is_refused_with_numbers(
    batch, replicas, micro, nearest
):
    with pytest.raises(ValueError, match=str(batch)) as error:
        phases.plan_batch(batch, replicas, micro)
    assert f"Nearest that divide: {nearest};" in str(error.value)


def test_lanes_share_a_batch_equally():
    assert phases.examples_per_lane(64, 8) == 8
    with pytest.raises(ValueError, match="60.*8 shards"):
        phases.examples_per_lane(60, 8)
