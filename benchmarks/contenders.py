"""The optimizers that are timed, and the modes each can be timed in."""

import dataclasses
from collections.abc import Callable

from benchmarks import prepare
from benchmarks.prepare import Prepared
from benchmarks.shapes import Shapes


@dataclasses.dataclass(frozen=True)
class Contender:
    """One optimizer.

    Attributes:
        name: As printed.
        imports: The modules it needs.
        install: What to give to `pip install` for them.
        modes: The modes it can be timed in.
        prepare: Called with shapes, dtype and mode.
        ours: Whether it is held to the targets.
        default_mode: The mode a user gets without asking, if it is one
            of the peers whose default path is a target.
    """

    name: str
    imports: tuple[str, ...]
    install: str
    modes: tuple[str, ...]
    prepare: Callable[[Shapes, str, str], Prepared]
    ours: bool = False
    default_mode: str | None = None

    @property
    def framework(self) -> str:
        """The process it runs in."""
        return self.imports[0]


_TF_MODES = ("eager", "graph", "xla")

CONTENDERS = (
    Contender(
        "ours, Keras 3",
        ("tensorflow", "keras", "lamb_tf"),
        ".",
        _TF_MODES,
        prepare.ours("lamb_tf.keras"),
        ours=True,
    ),
    Contender(
        "ours, tf_keras",
        ("tensorflow", "tf_keras", "lamb_tf"),
        "'.[tf_keras]'",
        _TF_MODES,
        prepare.ours("lamb_tf.tf_keras"),
        ours=True,
    ),
    Contender(
        "Keras Lamb",
        ("tensorflow", "keras"),
        "tensorflow",
        _TF_MODES,
        prepare.keras_lamb,
        default_mode="graph",
    ),
    Contender(
        "tf-models LAMB",
        ("tensorflow", "official.modeling.optimization.lamb"),
        "'.[bench]'",
        _TF_MODES,
        prepare.tf_models,
        default_mode="graph",
    ),
    Contender(
        "optax.lamb",
        ("jax", "optax"),
        "'.[bench]'",
        ("jit",),
        prepare.optax_lamb,
    ),
    # Of the PyTorch LAMBs that are kept, timm's alone computes the paper's
    # update: pytorch-optimizer's corrects no bias, decays outside the ratio
    # and clamps the norm at 10; torch-optimizer's last release is of 2021.
    Contender(
        "timm Lamb",
        ("torch", "timm.optim"),
        "'.[bench]'",
        ("foreach", "compile"),
        prepare.timm_lamb,
    ),
)

# `compile` takes minutes for a BERT, so it is timed on request alone.
DEFAULT_MODES = ("eager", "graph", "xla", "jit", "foreach")
MODES = DEFAULT_MODES + ("compile",)


def by_name(name: str) -> Contender:
    """Returns the contender of a name."""
    return next(c for c in CONTENDERS if c.name == name)
