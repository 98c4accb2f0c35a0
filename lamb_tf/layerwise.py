"""The general layer-wise strategy: one variable is one layer.

For any base update with direction `r`, a layer moves by

    u = r + weight_decay * w
    w = w - learning_rate * phi(|w|) / |u| * u

with the decay inside the ratio. Source: You et al., arXiv:1904.00962v5,
section 3 and Algorithm 2, lines 11-12.
"""

import dataclasses

import tensorflow as tf

Tensor = tf.Tensor


def l2_norm(x: Tensor, by_rows: bool = False) -> Tensor:
    """Returns the Euclidean norm of all elements of `x`, a scalar.

    Args:
        x: Any shape, floating-point.
        by_rows: Whether to shape the sum for XLA on CPU, which sums an
            array into a scalar in windows of 32 over a copy in memory.
    """
    squares = tf.square(x)
    if by_rows and x.shape.rank and x.shape.rank > 1:
        return tf.sqrt(_sum_by_rows(squares))
    return tf.sqrt(tf.reduce_sum(squares))


def _sum_by_rows(x: Tensor, block: int = 32) -> Tensor:
    """Returns the sum of squares in `x`, first over blocks of rows.

    XLA on CPU fuses a reduction over at most 32 rows, element by
    element, with what it sums; it vectorises and spreads over cores. No
    partial sum of squares is below 0: the maximum changes nothing, and
    keeps XLA from merging both reductions into one long one again.
    """
    x = tf.reshape(x, [-1, x.shape[-1]])
    rows = x.shape[0]
    whole = rows // block * block
    total = tf.reduce_sum(x[whole:]) if whole < rows else 0.0
    if whole:
        blocks = tf.reshape(x[:whole], [-1, block, x.shape[-1]])
        partial = tf.maximum(tf.reduce_sum(blocks, axis=1), 0.0)
        total += tf.reduce_sum(partial)
    return total


def phi(z: Tensor, trust_clip: tuple[float, float] | None) -> Tensor:
    """Returns `min(max(z, lower), upper)`; `z` itself for `None`.

    The paper never gives the two bounds; its authors' code uses the
    identity.
    """
    if trust_clip is None:
        return z
    lower, upper = trust_clip
    return tf.minimum(tf.maximum(z, lower), upper)


def trust_ratio(
    w: Tensor,
    u: Tensor,
    trust_clip: tuple[float, float] | None = None,
    by_rows: bool = False,
) -> Tensor:
    """Returns `phi(|w|) / |u|`, or 1 where either norm is 0.

    A layer that starts at zero would never move by a ratio of 0, and a
    zero update has no direction to scale: both take the base update's
    own step. The rule is that of the authors' code; the paper is silent.

    Args:
        w: Weights; any shape, floating-point.
        u: Update, of the shape and dtype of `w`.
        trust_clip: The bounds of `phi`, or `None`.
        by_rows: As for `l2_norm`.

    Returns:
        A scalar of the dtype of `w`.
    """
    w_norm, u_norm = l2_norm(w, by_rows), l2_norm(u, by_rows)
    usable = tf.logical_and(w_norm > 0.0, u_norm > 0.0)
    divisor = tf.where(usable, u_norm, tf.ones_like(u_norm))
    ratio = phi(w_norm, trust_clip) / divisor
    return tf.where(usable, ratio, tf.ones_like(ratio))


@dataclasses.dataclass(frozen=True)
class Layer:
    """How one variable follows its direction.

    Attributes:
        weight_decay: The decay rate; 0 for an excluded variable.
        adapted: Whether the step is scaled by the trust ratio.
        trust_clip: The bounds of `phi`, or `None` for the identity.
        by_rows: Whether norms are shaped for XLA on CPU.
    """

    weight_decay: float = 0.0
    adapted: bool = True
    trust_clip: tuple[float, float] | None = None
    by_rows: bool = False

    def __call__(
        self, w: Tensor, r: Tensor, learning_rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the new weights and the ratio they moved by.

        Args:
            w: Weights; any shape, floating-point.
            r: Direction, of the shape and dtype of `w`.
            learning_rate: Scalar of the dtype of `w`.

        Returns:
            `(w, ratio)`; the ratio is a scalar of the dtype of `w`.
        """
        u = r
        if self.weight_decay:
            u = r + self.weight_decay * w
        ratio = tf.ones([], w.dtype)
        if self.adapted:
            ratio = trust_ratio(w, u, self.trust_clip, self.by_rows)
        # Algorithm 2, line 12 (arXiv:1904.00962).
        return w - learning_rate * ratio * u, ratio
