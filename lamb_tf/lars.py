"""LARS's arguments, for either Keras."""

from collections.abc import Sequence
from typing import Any, Literal

from lamb_tf import arguments, rules
from lamb_tf.layerwise import Norm
from lamb_tf.optimizer import LayerwiseOptimizer


class Lars(LayerwiseOptimizer):
    """LARS: momentum, scaled to the size of each layer; two variants.

    For a variable `w` with gradient `g`, from `m = 0`, and with
    `d = g + weight_decay * w`, `variant="paper"` is

        m = momentum * m + (1 - momentum) * d
        w = w - learning_rate * trust_coefficient * phi(|w|) / |m| * m

    and `variant="you2017"` is

        ratio = trust_coefficient * phi(|w|) / (|g| + weight_decay * |w|)
        m = momentum * m + learning_rate * ratio * d
        w = w - m

    A ratio is 1 where either norm is 0.

    Example:
        >>> import tensorflow as tf
        >>> import lamb_tf
        >>> optimizer = lamb_tf.LARS(0.1)
        >>> w = tf.Variable([3.0, 4.0], name="w")
        >>> _ = optimizer.apply_gradients([(tf.constant([0.6, 0.8]), w)])
        >>> print(w.numpy())  # A tenth of its own size, along the gradient.
        [2.7 3.6]

    References:
        You et al., Large Batch Optimization for Deep Learning: Training
        BERT in 76 minutes, arXiv:1904.00962v5, Algorithm 1. You, Gitman
        and Ginsburg, Large Batch Training of Convolutional Networks,
        arXiv:1708.03888.
    """

    _advice = {
        "beta_1": "use `momentum`",
        "classic_momentum": "use `variant`",
        "eeta": "use `trust_coefficient`",
        "use_nesterov": "use `nesterov`",
    }

    def __init__(
        self,
        learning_rate: Any = 1e-2,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1.0,
        variant: Literal["paper", "you2017"] = "paper",
        nesterov: bool = False,
        exclude_from_weight_decay: Sequence[Any] | None = None,
        exclude_from_layer_adaptation: Sequence[Any] | None = None,
        trust_clip: Sequence[float] | None = None,
        norm: Norm = "l2",
        name: str = "LARS",
        **base_kwargs: Any,
    ):
        """Creates the optimizer.

        `variant="paper"` is Algorithm 1 of arXiv:1904.00962: the
        gradient with its decay is averaged, and the average is adapted.
        `variant="you2017"` is LARS as first published in
        arXiv:1708.03888: the gradient is adapted by
        `trust_coefficient * |w| / (|g| + weight_decay * |w|)`, and the
        adapted steps are summed with `momentum`.

        Args:
            learning_rate: A float, a schedule of either Keras, or a
                function without arguments. Float, `>= 0`.
            momentum: Decay rate of the momentum, in `[0, 1)`; `beta_1`
                of Algorithm 1.
            weight_decay: Decay rate, added to the gradient, `>= 0`.
            trust_coefficient: Multiplies the trust ratio, `> 0`; 1 in
                Algorithm 1, 0.001 in the paper of 2017.
            variant: `"paper"` or `"you2017"`.
            nesterov: Whether the step looks one momentum ahead.
            exclude_from_weight_decay: Regular expressions searched in
                the variable's path, or variables. Not decayed.
            exclude_from_layer_adaptation: Likewise; the trust ratio is
                1, and `trust_coefficient` not used. `None` means as the
                decay list, `[]` adapts all.
            trust_clip: The bounds `(lower, upper)` of `phi`, or `None`
                for the identity.
            norm: The norm of the ratio: `"l2"`, `"l1"` or `"linf"`.
            name: Name of the optimizer.
            **base_kwargs: Arguments of the Keras base class, as for
                `LAMB`.

        Raises:
            ValueError: If an argument is outside its range or unknown, or
                if a list of exclusions is not a list.
        """
        rule = rules.Lars(
            momentum=arguments.number("momentum", momentum, below=1.0),
            variant=arguments.choice("variant", variant, rules.LARS_VARIANTS),
            nesterov=arguments.flag("nesterov", nesterov),
        )
        super().__init__(
            rule,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            exclude_from_weight_decay=exclude_from_weight_decay,
            exclude_from_layer_adaptation=exclude_from_layer_adaptation,
            trust_clip=trust_clip,
            norm=norm,
            name=name,
            **base_kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns every constructor argument, serializable."""
        return {
            **super().get_config(),
            "trust_coefficient": self.trust_coefficient,
        }
