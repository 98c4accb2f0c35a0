"""One optimizer step over BERT-base, ours beside its peers.

    python -m benchmarks.optimizer [--repeats N] [--json FILE]

The bound is ten passes of 4 bytes per parameter (read w, g, m, v; write
m, v; read w, m, v; write w) at the copy bandwidth, measured before and
after every timing, since the machine may be shared. The table gives the
median and the fastest step, and the median ratio to the bound around it.
"""

import argparse
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402

PASSES = 10
HIDDEN, LAYERS, VOCABULARY = 768, 12, 30522
MODES = ("eager", "graph", "xla")


def bert_base_shapes() -> list[tuple[int, ...]]:
    """Returns the shapes of BERT-base with its pre-training heads."""
    norm = [(HIDDEN,), (HIDDEN,)]
    square = [(HIDDEN, HIDDEN), (HIDDEN,)]
    layer = 4 * square + norm
    layer += [(HIDDEN, 4 * HIDDEN), (4 * HIDDEN,)]
    layer += [(4 * HIDDEN, HIDDEN), (HIDDEN,)] + norm
    embeddings = [(VOCABULARY, HIDDEN), (512, HIDDEN), (2, HIDDEN)] + norm
    heads = square + norm + [(VOCABULARY,)] + [(HIDDEN, 2), (2,)]
    return embeddings + LAYERS * layer + heads


def contenders() -> Iterator[tuple[str, Callable[[], Any], Callable]]:
    """Yields name, constructor and the maker of its variables."""
    import keras
    from official.modeling.optimization import lamb as official_lamb

    import lamb_tf.keras
    import lamb_tf.tf_keras

    decay = {"learning_rate": 1e-4, "weight_decay": 0.01}
    yield "ours, Keras 3", lambda: lamb_tf.keras.LAMB(**decay), keras.Variable
    yield "ours, tf_keras", lambda: lamb_tf.tf_keras.LAMB(**decay), tf.Variable
    yield (
        "Keras Lamb",
        lambda: keras.optimizers.Lamb(**decay),
        keras.Variable,
    )
    yield (
        "tf-models LAMB",
        lambda: official_lamb.LAMB(1e-4, weight_decay_rate=0.01),
        tf.Variable,
    )


def step_of(
    create: Callable[[], Any], make_variable: Callable, mode: str
) -> Callable[[], None]:
    """Returns one update of all variables, ready to be timed."""
    shapes = bert_base_shapes()
    variables = [
        make_variable(tf.random.normal(shape, stddev=0.02)) for shape in shapes
    ]
    grads = [tf.random.normal(shape) for shape in shapes]
    optimizer = create()

    def step(grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "xla")
    return functools.partial(step, grads)


def copy_bound() -> Callable[[], float]:
    """Returns a function that measures the seconds of ten passes."""
    size = sum(
        functools.reduce(int.__mul__, shape, 1) for shape in bert_base_shapes()
    )
    source = tf.ones([size])
    target = tf.Variable(tf.zeros([size]))

    @tf.function(jit_compile=True)
    def copy(source):
        target.assign(source + 1.0)

    copy(source)

    def measure() -> float:
        # A copy is two passes: one read, one written.
        return seconds(functools.partial(copy, source)) * PASSES / 2

    return measure


def seconds(call: Callable[[], Any]) -> float:
    """Returns the wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run(repeats: int) -> dict[str, Any]:
    """Returns the median seconds of each contender in each mode."""
    bound = copy_bound()
    bounds, rows = [], []
    for mode in MODES:
        for name, create, make_variable in contenders():
            step = step_of(create, make_variable, mode)
            step(), step()
            times, ratios = [], []
            for _ in range(repeats):
                before = bound()
                took = seconds(step)
                local = (before + bound()) / 2
                bounds.append(local)
                times.append(took)
                ratios.append(took / local)
            rows.append(
                {
                    "mode": mode,
                    "optimizer": name,
                    "seconds": statistics.median(times),
                    "fastest": min(times),
                    "times_bound": statistics.median(ratios),
                }
            )
            print(_line(rows[-1]), flush=True)
            del step
    median = statistics.median(bounds)
    parameters = sum(
        functools.reduce(int.__mul__, shape, 1) for shape in bert_base_shapes()
    )
    return {
        "variables": len(bert_base_shapes()),
        "parameters": parameters,
        "bandwidth_gb_s": PASSES * 4 * parameters / median / 1e9,
        "bound_seconds": median,
        "repeats": repeats,
        "rows": rows,
    }


def _line(row):
    return (
        f"{row['mode']:<6} {row['optimizer']:<15} "
        f"median {row['seconds']:.3f} s  fastest {row['fastest']:.3f} s  "
        f"{row['times_bound']:.2f} x bound"
    )


def main() -> None:
    """Prints the table and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    report = run(arguments.repeats)
    print(
        f"{report['variables']} variables, "
        f"{report['parameters'] / 1e6:.1f}M parameters; copy "
        f"{report['bandwidth_gb_s']:.1f} GB/s; bound "
        f"{report['bound_seconds']:.3f} s"
    )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
