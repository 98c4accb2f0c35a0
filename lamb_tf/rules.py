"""The base updates of the paper, as pure functions of tensors.

A rule is a frozen, hashable set of scalars that can be called. It knows
neither the weights nor Keras: from the gradient, the moments and the
step it gives the direction `r` and the new moments. What is done with
`r` in a layer stands in `layerwise.py`.

Source: You et al., arXiv:1904.00962v5.
"""

import dataclasses
import math

import tensorflow as tf

Tensor = tf.Tensor


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
    """Algorithm 2 up to the direction `r_t`.

    Attributes:
        beta_1: Decay rate of the first moment, in `[0, 1)`.
        beta_2: Decay rate of the second moment, in `[0, 1)`.
        epsilon: Added to the root of the second moment, not under it.
        bias_correction: Whether the moments are corrected (v4 and v5 of
            the paper; appendix E of v5 says it may be dropped).
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = True

    slots = ("m", "v")

    def __call__(
        self, g: Tensor, m: Tensor, v: Tensor, t: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the direction and the new moments.

        Args:
            g: Gradient of one variable; any shape, floating-point.
            m: First moment, of the shape and dtype of `g`.
            v: Second moment, of the shape and dtype of `g`.
            t: The step, a scalar of the dtype of `g`; the first is 1.

        Returns:
            `(r, (m, v))`, each of the shape and dtype of `g`.
        """
        # Algorithm 2, lines 6-10 (arXiv:1904.00962).
        m = self.beta_1 * m + (1.0 - self.beta_1) * g
        v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(g)
        m_hat, v_hat = m, v
        if self.bias_correction:
            m_hat = m / one_minus_power(self.beta_1, t)
            v_hat = v / one_minus_power(self.beta_2, t)
        r = m_hat / (tf.sqrt(v_hat) + self.epsilon)
        return r, (m, v)
