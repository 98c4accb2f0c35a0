"""The general layer-wise strategy: one variable is one layer.

A base update gives a layer the step `u`; the strategy moves it by

    w = w - learning_rate * trust_coefficient * phi(|w|) / |u| * u

The decay is part of `u`, so it stands inside the ratio. Source: You et
al., arXiv:1904.00962v5, section 3; appendix F for the other norms.
"""

import dataclasses
from typing import Literal, NamedTuple

import tensorflow as tf

Tensor = tf.Tensor
Norm = Literal["l2", "l1", "linf"]
NORMS = ("l2", "l1", "linf")


def norm_of(
    x: Tensor, norm: Norm = "l2", by_rows: bool = False, stacked: bool = False
) -> Tensor:
    """Returns the norm of all elements of `x`, a scalar of its dtype.

    Args:
        x: Any shape, floating-point.
        norm: `"l2"`, `"l1"` or `"linf"`.
        by_rows: Whether to shape the reduction for XLA on CPU, which
            reduces an array to a scalar in one serial chain.
        stacked: Whether each `x[i]` has a norm of its own; the result is
            then of the rank of `x`, to be broadcast.
    """
    terms = tf.square(x) if norm == "l2" else tf.abs(x)
    reduce = tf.reduce_max if norm == "linf" else tf.reduce_sum
    if stacked:
        total = reduce(terms, list(range(1, x.shape.rank)), keepdims=True)
    elif by_rows and x.shape.rank and x.shape.rank > 1:
        total = _by_rows(reduce, terms)
    else:
        total = reduce(terms)
    return tf.sqrt(total) if norm == "l2" else total


def _by_rows(reduce, x: Tensor, block: int = 32) -> Tensor:
    """Returns `reduce` of terms `>= 0`, first over blocks of rows.

    XLA on CPU fuses a reduction over at most 32 rows, element by
    element, with what it reduces; it vectorises and spreads over cores.
    No partial result is below 0: the maximum changes nothing, and keeps
    XLA from merging both reductions into one long one again.
    """
    x = tf.reshape(x, [-1, x.shape[-1]])
    rows = x.shape[0]
    whole = rows // block * block
    parts = []
    if whole:
        blocks = tf.reshape(x[:whole], [-1, block, x.shape[-1]])
        parts.append(reduce(tf.maximum(reduce(blocks, axis=1), 0.0)))
    if whole < rows:
        parts.append(reduce(x[whole:]))
    return parts[0] if len(parts) == 1 else reduce(tf.stack(parts))


def phi(z: Tensor, trust_clip: tuple[float, float] | None) -> Tensor:
    """Returns `min(max(z, lower), upper)`; `z` itself for `None`.

    The paper never gives the two bounds; its authors' code uses the
    identity.
    """
    if trust_clip is None:
        return z
    lower, upper = trust_clip
    return tf.minimum(tf.maximum(z, lower), upper)


class Trust(NamedTuple):
    """A layer's trust ratio and what it was made of, three scalars.

    `w_norm` is `|w|` before `phi`, `u_norm` the divisor; both are NaN
    for a layer that is not adapted, where no norm is computed.
    """

    ratio: Tensor
    w_norm: Tensor
    u_norm: Tensor


@dataclasses.dataclass(frozen=True)
class Layer:
    """How one variable follows its base update.

    Attributes:
        weight_decay: The decay rate; 0 for an excluded variable.
        adapted: Whether the step is scaled by the trust ratio.
        trust_clip: The bounds of `phi`, or `None` for the identity.
        norm: The norm of the ratio.
        trust_coefficient: Multiplies the ratio, where there is one.
        by_rows: Whether norms are shaped for XLA on CPU.
        stacked: Whether tensors are stacks of layers, along axis 0.
    """

    weight_decay: float = 0.0
    adapted: bool = True
    trust_clip: tuple[float, float] | None = None
    norm: Norm = "l2"
    trust_coefficient: float = 1.0
    by_rows: bool = False
    stacked: bool = False

    def with_decay(self, x: Tensor, w: Tensor) -> Tensor:
        """Returns `x + weight_decay * w`."""
        return x + self.weight_decay * w if self.weight_decay else x

    def trust(self, w: Tensor, u: Tensor) -> Trust:
        """Returns the ratio `trust_coefficient * phi(|w|) / |u|`.

        The ratio is 1 where the layer is not adapted, and where either
        norm is 0.

        Args:
            w: Weights; any shape, floating-point.
            u: The base update, of the shape and dtype of `w`.
        """
        if not self.adapted:
            return self._no_trust(w)
        return self._trust(self._norm(w), self._norm(u))

    def trust_of_2017(self, w: Tensor, g: Tensor) -> Trust:
        """Returns `trust_coefficient * phi(|w|) / (|g| + decay * |w|)`.

        Otherwise as `trust`. Source: arXiv:1708.03888, equation 6.

        Args:
            w: Weights; any shape, floating-point.
            g: Gradient without the decay, of the shape and dtype of `w`.
        """
        if not self.adapted:
            return self._no_trust(w)
        w_norm = self._norm(w)
        return self._trust(w_norm, self._norm(g) + self.weight_decay * w_norm)

    def packed(self, trust: Trust) -> Tensor:
        """Returns the three of a `Trust` as the last axis of one tensor."""
        shape = [-1] if self.stacked else []
        return tf.stack([tf.reshape(x, shape) for x in trust], axis=-1)

    def _norm(self, x):
        return norm_of(x, self.norm, self.by_rows, self.stacked)

    def _trust(self, w_norm, u_norm):
        # A layer that starts at zero would never move by a ratio of 0, and
        # a zero update has no direction to scale: both take the base
        # update's own step. The rule is that of the authors' code; the
        # paper is silent.
        usable = tf.logical_and(w_norm > 0.0, u_norm > 0.0)
        divisor = tf.where(usable, u_norm, tf.ones_like(u_norm))
        ratio = self.trust_coefficient * phi(w_norm, self.trust_clip) / divisor
        ratio = tf.where(usable, ratio, tf.ones_like(ratio))
        return Trust(ratio, w_norm, u_norm)

    def _no_trust(self, w):
        shape = [w.shape[0], *[1] * (w.shape.rank - 1)] if self.stacked else []
        not_computed = tf.fill(shape, tf.constant(float("nan"), w.dtype))
        return Trust(tf.ones(shape, w.dtype), not_computed, not_computed)
