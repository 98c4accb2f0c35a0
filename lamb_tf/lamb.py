"""LAMB's arguments, for either Keras."""

from collections.abc import Sequence
from typing import Any, Literal

from lamb_tf import arguments, rules
from lamb_tf.layerwise import Norm
from lamb_tf.optimizer import LayerwiseOptimizer


class Lamb(LayerwiseOptimizer):
    """LAMB: Adam's direction, scaled to the size of each layer.

    At update `t` of a variable `w` with gradient `g`, from `m = v = 0`:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        u = (m / (1 - beta_1**t)) / (sqrt(v / (1 - beta_2**t)) + epsilon)
        u = u + weight_decay * w
        w = w - learning_rate * phi(|w|) / |u| * u

    The ratio `phi(|w|) / |u|` is 1 where either norm is 0.

    Example:
        >>> import tensorflow as tf
        >>> import lamb_tf
        >>> optimizer = lamb_tf.LAMB(0.1, weight_decay=0.01)
        >>> w = tf.Variable([3.0, 4.0], name="w")
        >>> for _ in range(3):
        ...     gradient = tf.constant([1.0, -1.0])
        ...     _ = optimizer.apply_gradients([(gradient, w)])
        ...     print(w.numpy().round(3))
        [2.634 4.341]
        [2.263 4.687]
        [1.882 5.042]
        >>> print(f"{optimizer.trust_ratios['w']:.3f}")
        3.723

    References:
        You et al., Large Batch Optimization for Deep Learning: Training
        BERT in 76 minutes, arXiv:1904.00962v5, Algorithm 2; appendix D
        for `nesterov`, E for `bias_correction`, F for `norm`.
    """

    _advice = {
        "beta1": "use `beta_1`",
        "beta2": "use `beta_2`",
        "betas": "use `beta_1` and `beta_2`",
        "eps": "use `epsilon`",
        "momentum": "use `beta_1`",
    }

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        exclude_from_weight_decay: Sequence[Any] | None = None,
        exclude_from_layer_adaptation: Sequence[Any] | None = None,
        bias_correction: bool = True,
        nesterov: Literal["first", "both"] | None = None,
        trust_clip: Sequence[float] | None = None,
        norm: Norm = "l2",
        name: str = "LAMB",
        **base_kwargs: Any,
    ):
        """Creates the optimizer.

        Args:
            learning_rate: A float, a schedule of either Keras, or a
                function without arguments. Float, `>= 0`.
            beta_1: Decay rate of the first moment, in `[0, 1)`.
            beta_2: Decay rate of the second moment, in `[0, 1)`.
            epsilon: Added to the root of the second moment, `>= 0`.
            weight_decay: Decay rate inside the trust ratio, `>= 0`.
            exclude_from_weight_decay: Regular expressions searched in
                the variable's path, or variables. Not decayed.
            exclude_from_layer_adaptation: Likewise; the trust ratio is
                1. `None` means as the decay list, `[]` adapts all.
            bias_correction: Whether the moments are corrected.
            nesterov: `None`; `"first"` for N-LAMB, whose first moment
                looks one step ahead; `"both"` for NN-LAMB, whose second
                does too (appendix D).
            trust_clip: The bounds `(lower, upper)` of `phi`, or `None`
                for the identity.
            norm: The norm of the ratio: `"l2"`, `"l1"` or `"linf"`
                (appendix F).
            name: Name of the optimizer.
            **base_kwargs: Arguments of the Keras base class: `clipnorm`,
                `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
                `ema_overwrite_frequency`; on Keras 3 `loss_scale_factor`
                and `gradient_accumulation_steps`; on tf_keras
                `jit_compile` and `mesh`.

        Raises:
            ValueError: If an argument is outside its range or unknown, or
                if a list of exclusions is not a list.
        """
        rule = rules.Lamb(
            beta_1=arguments.number("beta_1", beta_1, below=1.0),
            beta_2=arguments.number("beta_2", beta_2, below=1.0),
            epsilon=arguments.number("epsilon", epsilon),
            bias_correction=arguments.flag("bias_correction", bias_correction),
            nesterov=arguments.choice(
                "nesterov", nesterov, rules.LAMB_NESTEROV
            ),
        )
        super().__init__(
            rule,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            exclude_from_weight_decay=exclude_from_weight_decay,
            exclude_from_layer_adaptation=exclude_from_layer_adaptation,
            trust_clip=trust_clip,
            norm=norm,
            name=name,
            **base_kwargs,
        )
