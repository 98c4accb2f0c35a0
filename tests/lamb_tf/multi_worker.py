"""One of several workers: `TF_CONFIG` says which. Writes what it ends with.

python -m tests.lamb_tf.multi_worker OUT.npz CASE...
"""

import sys
import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import lamb_tf.keras
from tests.lamb_tf import models, replicated
from tests.lamb_tf.conftest import HOSTS, Host

FAST = ["keras/LAMB/loop", "keras/LAMB/overflow", "tf_keras/LARS/fit"]
SLOW = [
    "keras/LARS/loop",
    "keras/LAMB/accumulating",
    "tf_keras/LAMB/loop",
    "tf_keras/LARS/loop",
    "tf_keras/LAMB/fit",
    "tf_keras/LAMB/overflow",
    # Not even with SGD: see `test_fit_of_keras_3_takes_no_workers`.
    "keras/SGD/refused",
]


def weights_after(
    case: str, strategy: tf.distribute.Strategy
) -> dict[str, np.ndarray]:
    """Returns the weights after training on a strategy."""
    host_name, name, form = case.split("/")
    host = HOSTS[host_name]
    if form == "refused":
        return {"refused": np.float32(not keras_3_can_fit(strategy))}
    if form == "fit":
        return _fit(host, lambda: models.optimizer_of(host, name), strategy)
    if form == "overflow":
        return _overflow(host, strategy)
    micro_steps = 2 if form == "accumulating" else 1
    extra = {"gradient_accumulation_steps": 2} if micro_steps == 2 else {}
    loop = replicated.Loop(
        strategy,
        host,
        lambda: getattr(host, name)(
            0.02, weight_decay=0.1, global_clipnorm=1.0, **extra
        ),
        # Whole steps on one device stand for accumulated ones.
        micro_steps=micro_steps,
    )
    return loop.train()


def keras_3_can_fit(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether Keras 3's own `fit` works, with its own SGD."""
    host = HOSTS["keras"]
    try:
        _fit(host, lambda: host.keras.optimizers.SGD(0.01), strategy)
    except ValueError:
        return False
    return True


def _fit(host: Host, make_optimizer: Callable, strategy):
    with strategy.scope():
        model = models.model_of(host, make_optimizer())
    data = tf.data.Dataset.from_tensor_slices((models.X, models.Y)).batch(8)
    options = tf.data.Options()
    # Each worker takes its share of every batch.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    model.fit(data.with_options(options), epochs=1, verbose=0)
    return {str(i): w for i, w in enumerate(models.weights_of(model))}


def _overflow(host: Host, strategy) -> dict[str, np.ndarray]:
    """Three steps; at the second the last replica has an overflow."""
    wrap: Callable = (
        lamb_tf.keras.LossScaleOptimizer
        if host.name == "keras"
        else host.keras.mixed_precision.LossScaleOptimizer
    )
    with strategy.scope():
        w = host.variable([3.0, 4.0], "w")
        optimizer = wrap(host.LAMB(0.1, weight_decay=0.1), initial_scale=4.0)
        optimizer.build([w])
    last = strategy.num_replicas_in_sync - 1

    @tf.function
    def step(overflows):
        def replica():
            context = tf.distribute.get_replica_context()
            here = tf.equal(context.replica_id_in_sync_group, last)
            grad = tf.where(
                tf.logical_and(here, overflows),
                np.inf,
                tf.constant([1.0, 2.0]) / (last + 1),
            )
            optimizer.apply_gradients([(grad, w)])

        strategy.run(replica)

    for overflows in (False, True, False):
        step(tf.constant(overflows))
    iterations = tf.convert_to_tensor(optimizer.iterations).numpy()
    value = tf.convert_to_tensor(w).numpy()
    return {"w": value, "iterations": np.float32(iterations)}


def main(path: str, *cases: str) -> None:
    warnings.simplefilter("ignore")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 2
    results = {}
    for case in cases:
        for key, value in weights_after(case, strategy).items():
            results[f"{case}/{key}"] = value
        print("done", case, flush=True)
    np.savez(path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
