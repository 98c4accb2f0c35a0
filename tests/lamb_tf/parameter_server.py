"""A cluster with two parameter servers in this process.

python -m tests.lamb_tf.parameter_server OUT.npz
"""

import sys
import warnings

import numpy as np
import tensorflow as tf

from tests.lamb_tf import processes, replicated
from tests.lamb_tf.conftest import HOSTS

CASES = {
    "LAMB": ("LAMB", {"use_ema": True, "global_clipnorm": 1.0}),
    "LARS": ("LARS", {}),
}
HOST = HOSTS["tf_keras"]
SIZES = (3, 3)  # Of the two parts of the kernel.


def optimizer_of(case: str):
    name, arguments = CASES[case]
    return getattr(HOST, name)(
        0.02,
        weight_decay=0.1,
        exclude_from_weight_decay=["bias$"],
        **arguments,
    )


def layer_of():
    layer = HOST.keras.layers.Dense(1, name="dense")
    layer.build((None, 6))
    return layer


def step_of(layer, optimizer, strategy):
    x, y = (array[0] for array in replicated.data(1))

    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(x) - y))
        weights = layer.trainable_weights
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))

    return tf.function(lambda: strategy.run(replica))


def start() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(6, 1)).astype(np.float32)


def weights_on_one_device(case: str) -> np.ndarray:
    layer, optimizer = layer_of(), optimizer_of(case)
    layer.kernel.assign(start())
    step = step_of(layer, optimizer, tf.distribute.get_strategy())
    for _ in range(3):
        step()
    return layer.kernel.numpy()


def cluster() -> tf.distribute.ParameterServerStrategy:
    counts = {"worker": 1, "ps": 2}
    spec = tf.train.ClusterSpec(
        {
            job: [f"localhost:{port}" for port in processes.free_ports(count)]
            for job, count in counts.items()
        }
    )
    for job, count in counts.items():
        for index in range(count):
            tf.distribute.Server(spec, job, index, protocol="grpc")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, rpc_layer="grpc"
    )
    shards = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    return tf.distribute.ParameterServerStrategy(resolver, shards)


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    strategy = cluster()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    results = {}
    for case in CASES:
        with strategy.scope():
            layer, optimizer = layer_of(), optimizer_of(case)
            optimizer.build(layer.trainable_weights)
        parts = layer.kernel.variables
        assert [part.shape[0] for part in parts] == list(SIZES)
        devices = {tf.DeviceSpec.from_string(part.device) for part in parts}
        assert {(d.job, d.task) for d in devices} == {("ps", 0), ("ps", 1)}
        for part, value in zip(parts, np.split(start(), 2), strict=True):
            part.assign(value)
        step = step_of(layer, optimizer, strategy)
        for _ in range(3):
            coordinator.schedule(step)
            coordinator.join()
        results[f"{case}/one"] = weights_on_one_device(case)
        results[f"{case}/sharded"] = np.concatenate([p.numpy() for p in parts])
        results[f"{case}/table"] = optimizer.describe()
        results[f"{case}/ratios"] = [
            float(ratio) for ratio in optimizer.trust_ratios.values()
        ]
        print("done", case, flush=True)
    np.savez(path, **results)


if __name__ == "__main__":
    main(sys.argv[1])
