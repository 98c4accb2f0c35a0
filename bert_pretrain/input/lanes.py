"""The order of the examples: a function of (seed, epoch, lane, position).

A lane is a shard. All lanes hold the same number of examples and every global
batch takes an equal share from each, so the examples of a step follow from
the step alone: no iterator state to save, nothing to replay on a restart.
"""

from collections.abc import Mapping

import numpy as np

from bert_pretrain import phases
from bert_pretrain.data.records import Records


class LaneOrder:
    """Rows of the training stream of one phase.

    Row r of the global batch of a step comes from lane `r // share`, where
    `share` is the lane's part of the batch: a host that owns consecutive
    lanes owns consecutive rows.
    """

    def __init__(
        self,
        examples_per_lane: int,
        num_lanes: int,
        global_batch_size: int,
        seed: int,
    ):
        """Checks that the lanes share the batch equally.

        Raises:
          ValueError: If they do not; see `phases.examples_per_lane`.
        """
        self.share = phases.examples_per_lane(global_batch_size, num_lanes)
        self._examples = examples_per_lane
        self._seed = seed
        self._permutations: dict[int, tuple[int, np.ndarray]] = {}

    def rows(self, lane: int, step: int) -> np.ndarray:
        """Returns the lane's record numbers for a step.

        Args:
          lane: Lane number.
          step: Step within the phase, from 0.

        Returns:
          int64 [share]. Every epoch visits each record of the lane once.
        """
        position = step * self.share + np.arange(self.share)
        epochs, offsets = np.divmod(position, self._examples)
        result = np.empty(self.share, np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            result[here] = self._permutation(lane, int(epoch))[offsets[here]]
        return result

    def lanes(self, rows: slice) -> range:
        """Returns the lanes that consecutive rows of a batch come from."""
        return range(rows.start // self.share, -(-rows.stop // self.share))

    def _permutation(self, lane: int, epoch: int) -> np.ndarray:
        cached = self._permutations.get(lane)
        if cached is None or cached[0] != epoch:
            # Philox with this seeding is NumPy's stable, versioned stream.
            bits = np.random.Philox(
                np.random.SeedSequence([self._seed, lane, epoch])
            )
            order = np.random.Generator(bits).permutation(self._examples)
            cached = self._permutations[lane] = (epoch, order)
        return cached[1]


def gather(
    shards: Mapping[int, Records], order: LaneOrder, step: int, rows: slice
) -> Records:
    """Collects rows of one global batch.

    Args:
      shards: The phase's lanes by number; at least those of the rows.
      order: Their order.
      step: Step within the phase.
      rows: Consecutive rows of the global batch.

    Returns:
      The examples, in row order.
    """
    parts = []
    for lane in order.lanes(rows):
        first = lane * order.share
        wanted = slice(
            max(rows.start - first, 0), min(rows.stop - first, order.share)
        )
        chosen = order.rows(lane, step)[wanted]
        parts.append([field[chosen] for field in shards[lane]])
    return Records(
        *(np.concatenate(field) for field in zip(*parts, strict=True))
    )
