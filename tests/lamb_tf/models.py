"""A small model of either Keras, and how the tests fit it."""

from typing import Any

import numpy as np

from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf.conftest import Host

X = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
Y = X @ np.arange(6, dtype=np.float32)[:, None]


def optimizer_of(host: Host, name: str = "LAMB", **arguments: Any) -> Any:
    return getattr(host, name)(
        **{
            "learning_rate": WarmupPolynomialDecay(0.02, 2, 60),
            "weight_decay": 0.01,
            "exclude_from_weight_decay": ["bias", "gamma", "beta"],
            "global_clipnorm": 1.0,
            **arguments,
        }
    )


def model_of(host: Host, optimizer: Any = None, **compile_arguments: Any):
    host.keras.utils.set_random_seed(0)
    layers = host.keras.layers
    model = host.keras.Sequential(
        [
            layers.Dense(8, activation="relu"),
            layers.LayerNormalization(),
            layers.Dense(1),
        ]
    )
    model.build((None, 6))
    if optimizer is None:
        optimizer = optimizer_of(host)
    model.compile(optimizer=optimizer, loss="mse", **compile_arguments)
    return model


def fit(
    model: Any, epochs: int, batch_size: int = 8, rows: int = len(X)
) -> list[float]:
    """Returns the loss of each epoch."""
    history = model.fit(
        X[:rows], Y[:rows], batch_size, epochs, shuffle=False, verbose=0
    )
    return history.history["loss"]


def weights_of(model: Any) -> list[np.ndarray]:
    return [np.array(w) for w in model.get_weights()]
