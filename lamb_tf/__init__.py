"""LAMB and LARS for TensorFlow, exact to the paper, on both Kerases.

`lamb_tf.LAMB` and `lamb_tf.LARS` are the optimizers for the `tf.keras` in
force: Keras 3, or tf_keras when the environment has
`TF_USE_LEGACY_KERAS=1`. To name one of them outright, import from
`lamb_tf.keras` or `lamb_tf.tf_keras`.

TensorFlow is imported at the first use of an attribute that needs it.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_OPTIMIZERS = ("LAMB", "LARS")
_MODULES = (
    "callbacks",
    "importers",
    "keras",
    "recipes",
    "schedules",
    "tf_keras",
)

__all__ = ["LAMB", "LARS", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _OPTIMIZERS:
        return getattr(_adapter_in_force(), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OPTIMIZERS, *_MODULES})


def _adapter_in_force():
    import tensorflow as tf

    # Ask TensorFlow, not the environment: it read the variable once.
    legacy = tf.keras.optimizers.Optimizer.__module__.startswith("tf_keras")
    return importlib.import_module(
        f"{__name__}.{'tf_keras' if legacy else 'keras'}"
    )
