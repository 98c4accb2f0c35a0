"""Writes this folder's files with TensorFlow Addons 0.23, the last one.

Addons no longer imports under TensorFlow 2.20, so in an environment of
its own (Python 3.11), from the root of the repository:

    uv venv --python 3.11 /tmp/addons
    uv pip install --python /tmp/addons/bin/python tensorflow-cpu==2.15.1 \
        tensorflow-addons==0.23.0 numpy==1.26.4
    /tmp/addons/bin/python tests/lamb_tf/data/write_addons.py

Each run trains a small Keras 2 model with gradients drawn in advance,
writes a checkpoint half-way, and records the weights after every step:

    addons_<run>.index, .data-*   object-based checkpoint at step 5
    addons_<run>.json             the optimizer, serialized at step 5
    addons_<run>.npz              `layout`, a JSON of names and shapes, and
                                  flattened in its order: gradients
                                  [10, n], weights [11, n] of steps 0
                                  to 10, m and v [n] at step 5
"""

import json
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

HERE = pathlib.Path(__file__).parent
STEPS, SAVED = 10, 5
RUNS = {
    "defaults": {},
    "schedule": {
        "learning_rate": tf.keras.optimizers.schedules.PolynomialDecay(
            0.05, 12, 0.001
        ),
        "weight_decay": 0.1,
        "exclude_from_weight_decay": ["bias", "norm"],
        "exclude_from_layer_adaptation": ["bias"],
    },
    "decay": {
        "learning_rate": 0.02,
        "decay": 0.25,
        "beta_1": 0.875,
        "beta_2": 0.96875,
        "epsilon": 1e-3,
        "weight_decay_rate": 0.05,
        "exclude_from_weight_decay": ["norm/.*:0"],
        "clipvalue": 0.05,
    },
}


def model():
    """Returns a built model of six variables; biases and beta are zero."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Dense(6, name="dense"),
            layers.LayerNormalization(name="norm"),
            layers.Dense(3, name="head"),
        ]
    )
    model.build((None, 5))
    return model


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


def main():
    for run, arguments in RUNS.items():
        net = model()
        optimizer = tfa.optimizers.LAMB(**arguments)
        variables = net.trainable_variables
        layout = {v.name.split(":")[0]: v.shape.as_list() for v in variables}
        rng = np.random.default_rng(0)
        gradients, weights = [], [flat(variables)]
        for step in range(STEPS):
            grads = [
                rng.normal(0, 0.1, v.shape).astype("float32") for v in variables
            ]
            optimizer.apply_gradients(
                zip(map(tf.constant, grads), variables, strict=True)
            )
            gradients.append(flat(grads))
            weights.append(flat(variables))
            if step + 1 == SAVED:
                slots = {
                    name: flat(optimizer.get_slot(v, name) for v in variables)
                    for name in ("m", "v")
                }
                path = str(HERE / f"addons_{run}")
                tf.train.Checkpoint(model=net, optimizer=optimizer).write(path)
                config = tf.keras.optimizers.serialize(optimizer)
        np.savez(
            HERE / f"addons_{run}.npz",
            layout=json.dumps(layout),
            gradients=gradients,
            weights=weights,
            **slots,
        )
        (HERE / f"addons_{run}.json").write_text(
            json.dumps(config, indent=2, default=float) + "\n"
        )


if __name__ == "__main__":
    main()
