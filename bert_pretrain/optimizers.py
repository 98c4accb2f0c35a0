"""`lamb_tf`'s optimizers for tf-models' OptimizerFactory.

To import this module adds the optimizer types `lamb_tf` and `lars_tf` to
tf-models' own, beside its `lamb` and `lars`. From then on any experiment,
YAML file or `--params_override` of tf-models can ask for one:

    optimizer_config:
      optimizer:
        type: lamb_tf
        lamb_tf:
          weight_decay: 0.01
          exclude_from_weight_decay: [LayerNorm, layer_norm, bias]
          exclude_from_layer_adaptation: []

The keys are the arguments of `lamb_tf.LAMB` and `lamb_tf.LARS`, under
their names and with their defaults, which check the values; the learning
rate is the business of `optimizer_config.learning_rate`, as ever.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from official.modeling.optimization import optimizer_factory
from official.modeling.optimization.configs import (
    optimization_config,
    optimizer_config,
)

from bert_pretrain.strict_yaml import known_here
from lamb_tf import tf_keras as lamb_tf_keras


@dataclasses.dataclass
class LayerwiseConfig(optimizer_config.BaseOptimizerConfig):
    """What `lamb_tf.LAMB` and `lamb_tf.LARS` have in common.

    An unknown key is an error here also where tf-models would add it,
    which is when a configuration is made from a dictionary.

    Attributes:
        weight_decay: Decay rate inside the trust ratio.
        exclude_from_weight_decay: Regular expressions searched in a
            variable's path; `None` and `[]` exclude none.
        exclude_from_layer_adaptation: Likewise; `None` means as the decay
            list, `[]` adapts all.
        trust_clip: `[lower, upper]` of phi, or `None` for the identity.
        norm: `l2`, `l1` or `linf`.
        use_ema: Whether the optimizer keeps an average of the weights.
        ema_momentum: Momentum of that average.
        ema_overwrite_frequency: Updates between two overwrites of the
            weights by the average; `None` for none.
        jit_compile: Whether the update is compiled by XLA.
    """

    weight_decay: float = 0.0
    exclude_from_weight_decay: list[str] | None = None
    exclude_from_layer_adaptation: list[str] | None = None
    trust_clip: list[float] | None = None
    norm: str = "l2"
    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    jit_compile: bool = True

    def _override(
        self, override_dict: Mapping[str, Any], is_strict: bool = True
    ) -> None:
        _refuse_unknown(type(self).__name__, override_dict, self.__dict__)
        super()._override(override_dict, is_strict)


@dataclasses.dataclass
class LambTfConfig(LayerwiseConfig):
    """Arguments of `lamb_tf.LAMB`.

    Attributes:
        name: Name of the optimizer.
        beta_1: Decay rate of the first moment.
        beta_2: Decay rate of the second moment.
        epsilon: Added to the root of the second moment.
        bias_correction: Whether the moments are corrected.
        nesterov: `None`, `first` for N-LAMB or `both` for NN-LAMB.
    """

    name: str = "LAMB"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = True
    nesterov: str | None = None


@dataclasses.dataclass
class LarsTfConfig(LayerwiseConfig):
    """Arguments of `lamb_tf.LARS`.

    Attributes:
        name: Name of the optimizer.
        momentum: Decay rate of the momentum.
        trust_coefficient: Multiplies the trust ratio.
        variant: `paper` or `you2017`.
        nesterov: Whether the step looks one momentum ahead.
    """

    name: str = "LARS"
    momentum: float = 0.9
    trust_coefficient: float = 1.0
    variant: str = "paper"
    nesterov: bool = False


CONFIGS = {"lamb_tf": LambTfConfig, "lars_tf": LarsTfConfig}


def _refuse_unknown(
    owner: str, given: Iterable[str], known: Iterable[str]
) -> None:
    known = sorted(key for key in known if not key.startswith("_"))
    for key in given:
        if key not in known:
            raise KeyError(
                f"{owner} has no key {key!r}.{known_here(key, known)}"
            )


def _add_types(one_of: type, configs: dict[str, type]) -> None:
    """Adds fields to a dataclass that others refer to already.

    tf-models' way is to derive a class of one's own. Its experiments
    then would not see it: each names `OptimizationConfig` itself. So
    derive one for the methods that `dataclass` writes, and put those
    into the original.
    """
    derived = dataclasses.make_dataclass(
        one_of.__name__,
        [
            (name, config, dataclasses.field(default_factory=config))
            for name, config in configs.items()
        ],
        bases=(one_of,),
    )
    one_of.__annotations__.update(configs)
    for name in (
        "__dataclass_fields__",
        "__match_args__",
        "__init__",
        "__repr__",
        "__eq__",
    ):
        setattr(one_of, name, derived.__dict__[name])
    get, known = one_of.get, one_of.__dataclass_fields__

    def strict_get(self):
        # tf-models makes a new section of a mistyped one, and ignores it.
        if self.type in configs:
            given = self.__dict__.keys() - set(self.RESERVED_ATTR)
            _refuse_unknown(one_of.__name__, given, known)
        return get(self)

    one_of.get = strict_get


def _register() -> None:
    _add_types(optimization_config.OptimizerConfig, CONFIGS)
    optimizers = {"lamb_tf": lamb_tf_keras.LAMB, "lars_tf": lamb_tf_keras.LARS}
    for name, optimizer in optimizers.items():
        for legacy in (True, False):
            # The factory's default is to look among the legacy ones.
            optimizer_factory.register_optimizer_cls(name, optimizer, legacy)


_register()
