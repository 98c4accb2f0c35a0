"""The distribution strategy of a recipe's `runtime`."""

import glob

import tensorflow as tf
import tf_keras
from official.common import distribute_utils

from bert_pretrain.config import ConfigError, Runtime

# Where a TPU VM has its chips: up to v4, and from v5 on.
_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def make_strategy(runtime: Runtime) -> tf.distribute.Strategy:
    """Builds the strategy and sets the precision policy.

    Call it before TensorFlow touches a device.

    Raises:
      ConfigError: If the devices it names are not there.
    """
    _check_local_tpu(runtime)
    dtype = runtime.mixed_precision_dtype
    tf_keras.mixed_precision.set_global_policy(
        "float32" if dtype == "float32" else f"mixed_{dtype}"
    )
    gpus = len(tf.config.list_physical_devices("GPU"))
    if runtime.num_gpus > gpus:
        raise ConfigError(
            f"runtime.num_gpus is {runtime.num_gpus}, but TensorFlow sees "
            f"{gpus}. Lower it, or install the CUDA build: pip install "
            "'tensorflow[and-cuda]==2.20.0'."
        )
    if runtime.num_logical_cpus > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu,
            [tf.config.LogicalDeviceConfiguration()] * runtime.num_logical_cpus,
        )
        return tf.distribute.MirroredStrategy(
            [f"cpu:{i}" for i in range(runtime.num_logical_cpus)]
        )
    try:
        return distribute_utils.get_distribution_strategy(
            distribution_strategy=runtime.distribution_strategy,
            num_gpus=runtime.num_gpus,
            tpu_address=runtime.tpu,
        )
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as e:
        if runtime.distribution_strategy != "tpu":
            raise
        raise ConfigError(
            f"--tpu={runtime.tpu}: no TPU could be reached ({e}). On a TPU VM "
            "use --tpu=local and the `tpu` stage of the Dockerfile, which "
            "brings tensorflow-tpu and the libtpu that fits it."
        ) from e


def _check_local_tpu(runtime: Runtime) -> None:
    """Refuses `--tpu=local` without a TPU, on which libtpu waits for ever."""
    if (
        runtime.distribution_strategy == "tpu"
        and runtime.tpu in ("", "local")
        and not any(map(glob.glob, _TPU_DEVICES))
    ):
        raise ConfigError(
            f"--tpu={runtime.tpu}: this machine has no TPU (neither "
            f"{' nor '.join(_TPU_DEVICES)} exists). Run it on a TPU VM, or "
            "name a TPU by --tpu=NAME."
        )
