"""The state of another LAMB, as read from a file and not yet used."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class PeerLayer:
    """What a file holds of one variable.

    Attributes:
        name: The variable's name there, or `None` where it has none.
        key: Its path of attributes in the checkpoint, likewise.
        arrays: By `m`, `v`, `weight`, `average` and `accumulator`, those
            that there are; each of the shape of the variable.
    """

    name: str | None
    key: str | None
    arrays: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class PeerState:
    """What a file holds of one optimizer.

    Attributes:
        source: `"addons"`, which is tf-models too, or `"keras"`.
        where: The file, and the optimizer in it, for messages.
        iterations: Updates done; Keras 3 counts micro-steps.
        layers: Its variables; in the optimizer's order for `"keras"`.
        scalars: Its scalar arguments that the file holds, by our names.
        remarks: What the file holds that an import leaves behind, and
            doubts about who wrote it.
    """

    source: str
    where: str
    iterations: int
    layers: list[PeerLayer]
    scalars: dict[str, float]
    remarks: list[str]


def doubts(name: str) -> list[str]:
    """Returns a remark if an optimizer of Keras 3 is not named a Lamb.

    Adam keeps the same arrays: only the name can tell.
    """
    if "lamb" in name.lower():
        return []
    return [f"it is called {name!r}, and may not be a Lamb"]
