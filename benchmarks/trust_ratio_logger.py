"""What logging the trust ratios costs a step of `fit`.

    python -m benchmarks.trust_ratio_logger --keras keras --pairs 20

trains a small BERT-like model, in stretches of `--steps` updates with the
logger and without it by turns, and prints the medians. A stretch of the
default interval holds one point of every curve.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402

import lamb_tf.keras  # noqa: E402
import lamb_tf.tf_keras  # noqa: E402
from lamb_tf.callbacks import TrustRatioLogger  # noqa: E402

HOSTS = {
    "keras": (keras, lamb_tf.keras.LAMB),
    "tf_keras": (tf_keras, lamb_tf.tf_keras.LAMB),
}


def bert_like(host, layers: int, width: int, vocabulary: int, length: int):
    """Returns a Transformer encoder that predicts every token."""
    tokens = host.layers.Input([length], dtype="int32")
    x = host.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(layers):
        heads = width // 32
        y = host.layers.MultiHeadAttention(heads, 32)(x, x)
        x = host.layers.LayerNormalization()(x + y)
        y = host.layers.Dense(4 * width, activation="gelu")(x)
        x = host.layers.LayerNormalization()(x + host.layers.Dense(width)(y))
    return host.Model(tokens, host.layers.Dense(vocabulary)(x))


class Run:
    """A model in training, and the seconds of its stretches."""

    def __init__(self, host, optimizer_class, arguments, folder: str):
        self._model = bert_like(
            host,
            arguments.layers,
            arguments.width,
            arguments.vocabulary,
            arguments.length,
        )
        self._model.compile(
            optimizer_class(
                1e-4,
                weight_decay=0.01,
                exclude_from_weight_decay=["bias", "gamma", "beta", "norm"],
            ),
            host.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        tokens = np.random.default_rng(0).integers(
            arguments.vocabulary, size=(arguments.batch, arguments.length)
        )
        tokens = tf.constant(tokens, tf.int32)
        self._data = tf.data.Dataset.from_tensors((tokens, tokens)).repeat()
        self._steps = arguments.steps
        self.logger = TrustRatioLogger(folder)

    def stretch(self, logged: bool) -> tuple[float, float]:
        """Returns wall and CPU seconds of a step, the mean of a stretch."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._model.fit(
            self._data,
            steps_per_epoch=self._steps,
            verbose=0,
            callbacks=[self.logger] if logged else [],
        )
        return (
            (time.perf_counter() - wall) / self._steps,
            (time.process_time() - cpu) / self._steps,
        )

    def point(self) -> float:
        """Returns the median wall seconds of one point of all curves."""
        optimizer, seconds = self._model.optimizer, []
        for _ in range(51):
            start = time.perf_counter()
            self.logger.log(optimizer, 0)
            self.logger.log(optimizer, self.logger.every_n_steps)
            seconds.append((time.perf_counter() - start) / 2)
        return statistics.median(seconds)

    def size(self) -> str:
        """Returns the number of variables and of parameters."""
        parameters = self._model.count_params()
        count = len(self._model.trainable_variables)
        return f"{count} variables, {parameters / 1e6:.1f}M parameters"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keras", choices=HOSTS, default="keras")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(*HOSTS[arguments.keras], arguments, folder)
        for logged in (False, True):
            run.stretch(logged)  # Traced and compiled here.
        pairs = []
        for i in range(arguments.pairs):
            # Which of both comes first alternates too.
            order = (False, True) if i % 2 else (True, False)
            pair = {logged: run.stretch(logged) for logged in order}
            pairs.append((pair[False], pair[True]))
        point = run.point()
    print(f"{arguments.keras}: {run.size()}, {arguments.pairs} pairs")
    for i, kind in enumerate(("wall", "CPU")):
        off = statistics.median(pair[0][i] for pair in pairs)
        on = statistics.median(pair[1][i] for pair in pairs)
        more = statistics.median(pair[1][i] / pair[0][i] for pair in pairs)
        print(
            f"{kind}: {off * 1e3:.2f} ms a step without, {on * 1e3:.2f} with: "
            f"{on / off - 1:+.2%}; median of the pairs {more - 1:+.2%}"
        )
        if kind == "wall":
            share = point / run.logger.every_n_steps / off
    print(f"one point of all curves: {point * 1e3:.2f} ms, {share:.3%} of")
    print(f"the {run.logger.every_n_steps} steps it stands for")


if __name__ == "__main__":
    main()
