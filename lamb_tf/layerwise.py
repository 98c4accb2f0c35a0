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


def l2_norm(x: Tensor) -> Tensor:
    """Returns the Euclidean norm of all elements of `x`, a scalar."""
    return tf.sqrt(tf.reduce_sum(tf.square(x)))


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
    w: Tensor, u: Tensor, trust_clip: tuple[float, float] | None = None
) -> Tensor:
    """Returns `phi(|w|) / |u|`, or 1 where either norm is 0.

    A layer that starts at zero would never move by a ratio of 0, and a
    zero update has no direction to scale: both take the base update's
    own step. The rule is that of the authors' code; the paper is silent.

    Args:
        w: Weights; any shape, floating-point.
        u: Update, of the shape and dtype of `w`.
        trust_clip: The bounds of `phi`, or `None`.

    Returns:
        A scalar of the dtype of `w`.
    """
    w_norm, u_norm = l2_norm(w), l2_norm(u)
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
    """

    weight_decay: float = 0.0
    adapted: bool = True
    trust_clip: tuple[float, float] | None = None

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
            ratio = trust_ratio(w, u, self.trust_clip)
        # Algorithm 2, line 12 (arXiv:1904.00962).
        return w - learning_rate * ratio * u, ratio
