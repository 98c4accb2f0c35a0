"""The small model that other LAMBs train beside ours."""

import json
import pathlib

import numpy as np
import tensorflow as tf

DATA = pathlib.Path(__file__).parent / "data"
RUNS = ("defaults", "schedule", "decay")  # Of data/write_addons.py.
STEPS, SAVED = 10, 5
NAMES = [
    "dense/kernel",
    "dense/bias",
    "norm/gamma",
    "norm/beta",
    "head/kernel",
    "head/bias",
]


def model(keras, first="dense", last="head"):
    """The model of data/write_addons.py, in either Keras."""
    layers = keras.layers
    net = keras.Sequential(
        [
            layers.Dense(6, name=first),
            layers.LayerNormalization(name="norm"),
            layers.Dense(3, name=last),
        ]
    )
    net.build((None, 5))
    return net


def values(net):
    """Returns the trainable weights by the names of `NAMES`."""
    return {
        name: np.array(tf.convert_to_tensor(v), np.float32)
        for name, v in zip(NAMES, net.trainable_variables, strict=True)
    }


def set_values(net, weights):
    for name, v in zip(NAMES, net.trainable_variables, strict=True):
        v.assign(weights[name])


def draw(steps=STEPS, seed=1):
    """Returns initial weights, none zero, and gradients of each step."""
    rng = np.random.default_rng(seed)
    shapes = recorded("defaults")["weights"][0]

    def some(scale):
        return {
            k: rng.normal(0, scale, w.shape).astype("float32")
            for k, w in shapes.items()
        }

    return some(0.5), [some(0.1) for _ in range(steps)]


def step(optimizer, net, gradients):
    optimizer.apply_gradients(
        [
            (tf.convert_to_tensor(gradients[name]), v)
            for name, v in zip(NAMES, net.trainable_variables, strict=True)
        ]
    )


def recorded(run):
    """Returns what TensorFlow Addons did, by variable name."""
    with np.load(DATA / f"addons_{run}.npz") as file:
        layout = json.loads(str(file["layout"]))
        sizes = [int(np.prod(shape)) for shape in layout.values()]

        def named(flat):
            parts = np.split(flat, np.cumsum(sizes)[:-1])
            return {
                name: part.reshape(shape)
                for part, (name, shape) in zip(
                    parts, layout.items(), strict=True
                )
            }

        return {
            "weights": [named(flat) for flat in file["weights"]],
            "gradients": [named(flat) for flat in file["gradients"]],
            "m": named(file["m"]),
            "v": named(file["v"]),
        }


def config(run):
    return json.loads((DATA / f"addons_{run}.json").read_text())
