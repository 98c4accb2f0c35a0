"""The paper's algorithms, as pure functions of tensors.

A rule is a frozen, hashable set of scalars that can be called with one
layer's tensors. It knows no Keras. What is common to all layer-wise
optimizers (norms, ratio, decay rate, exclusions) it asks of the `Layer`
of `layerwise.py`.

Source: You et al., arXiv:1904.00962v5.
"""

import dataclasses
import math
from typing import Literal

import tensorflow as tf

from lamb_tf.layerwise import Layer, Trust

Tensor = tf.Tensor
LAMB_NESTEROV = (None, "first", "both")
LARS_VARIANTS = ("paper", "you2017")
_TINY = 2.0**-126  # float32 has nothing smaller that XLA does not flush.
# The new weights, the new moments, and the trust ratio of the step.
Step = tuple[Tensor, tuple[Tensor, ...], Trust]


def one_minus_power(beta: float, t: Tensor) -> Tensor:
    """Returns `1 - beta**t` without cancellation.

    In float32, `1 - 0.999**1` taken literally is 1e-5 off; by `expm1`
    it is exact to rounding.

    Args:
        beta: The decay rate, in `[0, 1)`.
        t: The step, a floating-point scalar, from 1.

    Returns:
        A scalar of the dtype of `t`.
    """
    if beta == 0.0:
        return tf.ones_like(t)
    return -tf.math.expm1(t * math.log(beta))


@dataclasses.dataclass(frozen=True)
class Lamb:
    """Algorithm 2, and N-LAMB and NN-LAMB of appendix D.

    Attributes:
        beta_1: Decay rate of the first moment, in `[0, 1)`.
        beta_2: Decay rate of the second moment, in `[0, 1)`.
        epsilon: Added to the root of the second moment, not under it.
        bias_correction: Whether the moments are corrected (v4 and v5 of
            the paper; appendix E of v5 says it may be dropped).
        nesterov: `None`; `"first"` for N-LAMB, whose first moment looks
            one step ahead; `"both"` for NN-LAMB, whose second does too.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = True
    nesterov: Literal["first", "both"] | None = None

    slots = ("m", "v")

    def __call__(
        self,
        layer: Layer,
        w: Tensor,
        g: Tensor,
        moments: tuple[Tensor, Tensor],
        t: Tensor,
        learning_rate: Tensor,
    ) -> Step:
        """Returns one step of one layer.

        Args:
            layer: The layer's decay rate and how it is adapted.
            w: Weights; any shape, floating-point.
            g: Gradient, of the shape and dtype of `w`.
            moments: `(m, v)`, of the shape and dtype of `w`.
            t: The step, a scalar of the dtype of `w`; the first is 1.
            learning_rate: Scalar of the dtype of `w`.

        Returns:
            `(w, (m, v), trust)`.
        """
        m, v = moments
        # Algorithm 2, lines 6-12 (arXiv:1904.00962).
        m = self.beta_1 * m + (1.0 - self.beta_1) * g
        v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(g)
        m_hat, v_hat = self._corrected(m, v, g, t)
        # Without epsilon a gradient of zero is 0 / 0: no step.
        divide = tf.divide if self.epsilon > _TINY else tf.math.divide_no_nan
        r = divide(m_hat, tf.sqrt(v_hat) + self.epsilon)
        u = layer.with_decay(r, w)
        trust = layer.trust(w, u)
        return w - learning_rate * trust.ratio * u, (m, v), trust

    def _corrected(self, m, v, g, t):
        """Returns `m_hat` and `v_hat`; appendix D at constant betas."""

        def correction(beta, steps):
            # A scalar to multiply by: a division per weight costs more.
            if not self.bias_correction:
                return 1.0
            return 1.0 / one_minus_power(beta, steps)

        if self.nesterov is None:
            m_hat = m * correction(self.beta_1, t)
            v_hat = v * correction(self.beta_2, t)
            return m_hat, v_hat
        m_hat = self.beta_1 * m * correction(self.beta_1, t + 1.0) + (
            1.0 - self.beta_1
        ) * g * correction(self.beta_1, t)
        if self.nesterov == "first":
            return m_hat, self.beta_2 * v * correction(self.beta_2, t)
        v_hat = self.beta_2 * v * correction(self.beta_2, t + 1.0) + (
            1.0 - self.beta_2
        ) * tf.square(g) * correction(self.beta_2, t)
        return m_hat, v_hat


@dataclasses.dataclass(frozen=True)
class Lars:
    """Algorithm 1; or LARS as first published, arXiv:1708.03888.

    Attributes:
        momentum: Decay rate of the momentum, in `[0, 1)`.
        variant: `"paper"` averages gradients and adapts the average;
            `"you2017"` adapts the gradient, with the norm of its decay
            added to its own, and sums the adapted steps.
        nesterov: Whether the step looks one momentum ahead.
    """

    momentum: float = 0.9
    variant: Literal["paper", "you2017"] = "paper"
    nesterov: bool = False

    slots = ("m",)

    def __call__(
        self,
        layer: Layer,
        w: Tensor,
        g: Tensor,
        moments: tuple[Tensor],
        t: Tensor,
        learning_rate: Tensor,
    ) -> Step:
        """Returns one step of one layer.

        Args:
            layer: The layer's decay rate and how it is adapted.
            w: Weights; any shape, floating-point.
            g: Gradient, of the shape and dtype of `w`.
            moments: `(m,)`, of the shape and dtype of `w`.
            t: Not used; LARS does not count.
            learning_rate: Scalar of the dtype of `w`.

        Returns:
            `(w, (m,), trust)`.
        """
        del t
        (m,) = moments
        decayed = layer.with_decay(g, w)
        if self.variant == "paper":
            # Algorithm 1, lines 5-6 (arXiv:1904.00962).
            fresh = (1.0 - self.momentum) * decayed
            m = self.momentum * m + fresh
            u = self.momentum * m + fresh if self.nesterov else m
            trust = layer.trust(w, u)
            return w - learning_rate * trust.ratio * u, (m,), trust
        # Algorithm 1 (arXiv:1708.03888): the rate is part of the momentum.
        trust = layer.trust_of_2017(w, g)
        fresh = learning_rate * trust.ratio * decayed
        m = self.momentum * m + fresh
        u = self.momentum * m + fresh if self.nesterov else m
        return w - u, (m,), trust
