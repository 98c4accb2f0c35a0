"""What an optimizer's saved state must look like to be its state."""

import json
from collections.abc import Sequence

import tensorflow as tf


class Layout(tf.train.experimental.PythonState):
    """The shapes of an optimizer's variables, in its checkpoints.

    A checkpoint finds the variables by position. TensorFlow is silent if
    there are more or fewer of them, and, where it restores before the
    build, also if one has another shape: that one then starts anew.
    """

    def __init__(self):
        self._own = None
        self._restored = None

    def settle(self, shapes: Sequence[Sequence[int]]) -> None:
        """Sets the optimizer's own layout, once it is built.

        Args:
            shapes: The shapes of its variables, in their order.

        Raises:
            ValueError: If one of another layout was restored before.
        """
        self._own = [list(shape) for shape in shapes]
        self._compare()

    def serialize(self) -> str:
        """Returns the layout as a checkpoint holds it."""
        return json.dumps(self._own)

    def deserialize(self, string_value: str | bytes) -> None:
        """Compares the layout of a checkpoint with the optimizer's own.

        Raises:
            ValueError: If they differ.
        """
        self._restored = json.loads(string_value)
        self._compare()

    def _compare(self):
        own, restored = self._own, self._restored
        # There is none before the build, on either side.
        if own is not None and restored is not None:
            check(own, restored)


def check(own: Sequence[Sequence[int]], saved: Sequence[Sequence[int]]) -> None:
    """Compares the shapes of an optimizer's variables with those saved.

    Args:
        own: The shapes of the optimizer's variables, in their order.
        saved: Those of the saved state.

    Raises:
        ValueError: If they differ, in number or anywhere.
    """
    if len(saved) != len(own):
        raise ValueError(
            f"The saved optimizer has {len(saved)} variables, this one "
            f"{len(own)}: the saved one had another model, algorithm, dtype "
            "or arguments. Restore the model without its optimizer, or make "
            "the optimizer as it was."
        )
    for index, pair in enumerate(zip(own, saved, strict=True)):
        mine, theirs = map(tuple, pair)
        if mine != theirs:
            raise ValueError(
                f"Variable {index} of the saved optimizer has shape {theirs}, "
                f"here it has {mine}: the saved one had another model, "
                "algorithm or arguments."
            )
