"""Step to phase, batch to replicas and accumulation: pure arithmetic.

The phase is a function of the global step, so a run that is resumed at any
step lands in the right phase at the right position of its data. No TensorFlow
here: `plan` and the tests use these functions without it.
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Span:
    """Where one phase lies in the run.

    Attributes:
      index: Position of the phase in the recipe, from 0.
      first_step: Global step at which the phase begins.
      last_step: Global step at which it ends (exclusive).
      first_example: Examples the earlier phases consume. Example `i` of this
        phase has index `first_example + i` in the training stream; masks and
        dropout are keyed by that index.
    """

    index: int
    first_step: int
    last_step: int
    first_example: int


def spans(phases: Sequence) -> list[Span]:
    """Lays the phases one behind the other.

    Args:
      phases: Objects with `train_steps` and `global_batch_size`.

    Returns:
      One `Span` per phase, in order.
    """
    result, step, example = [], 0, 0
    for index, phase in enumerate(phases):
        last = step + phase.train_steps
        result.append(Span(index, step, last, example))
        example += phase.train_steps * phase.global_batch_size
        step = last
    return result


def phase_at(step: int, phases: Sequence) -> int | None:
    """Returns the index of the phase that trains `step`; None after the end."""
    for span in spans(phases):
        if step < span.last_step:
            return span.index
    return None


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """How one global batch is computed.

    `global_batch_size = micro_batch_size x replicas x accumulation_steps`.
    """

    global_batch_size: int
    replicas: int
    micro_batch_size: int
    accumulation_steps: int

    @property
    def per_replica(self) -> int:
        """Examples each replica computes for one optimizer step."""
        return self.micro_batch_size * self.accumulation_steps

    def __str__(self) -> str:
        return (
            f"global batch {self.global_batch_size} = {self.micro_batch_size} "
            f"per replica x {self.replicas} replica"
            f"{'' if self.replicas == 1 else 's'} x "
            f"{self.accumulation_steps} accumulation step"
            f"{'' if self.accumulation_steps == 1 else 's'}"
        )


def plan_batch(
    global_batch_size: int, replicas: int, micro_batch_size: int | None
) -> BatchPlan:
    """Derives the accumulation that makes up the global batch.

    Args:
      global_batch_size: Sequences per optimizer step, over all replicas.
      replicas: Replicas in sync.
      micro_batch_size: Sequences a replica computes at once; None for all of
        its share, without accumulation.

    Raises:
      ValueError: If the batch does not divide; the message has the numbers
        and the nearest global batch sizes that do.
    """
    unit = replicas * (micro_batch_size or 1)
    if global_batch_size % unit or global_batch_size < unit:
        lower = global_batch_size // unit * unit
        nearest = ", ".join(str(n) for n in (lower, lower + unit) if n)
        each = (
            f" x micro_batch_size {micro_batch_size}"
            if micro_batch_size
            else ""
        )
        raise ValueError(
            f"global_batch_size {global_batch_size} is not divisible by "
            f"{replicas} replicas{each} = {unit}. Nearest that divide: "
            f"{nearest}; or change micro_batch_size."
        )
    micro = micro_batch_size or global_batch_size // replicas
    return BatchPlan(
        global_batch_size,
        replicas,
        micro,
        global_batch_size // replicas // micro,
    )


def examples_per_lane(global_batch_size: int, num_lanes: int) -> int:
    """Returns each lane's equal share of one global batch.

    Raises:
      ValueError: If the lanes cannot share the batch equally.
    """
    if global_batch_size % num_lanes:
        raise ValueError(
            f"global_batch_size {global_batch_size} is not divisible by the "
            f"{num_lanes} shards (lanes) of the prepared data. Choose a "
            f"multiple of {num_lanes}, or prepare again with --num_shards that "
            "divides it."
        )
    return global_batch_size // num_lanes
