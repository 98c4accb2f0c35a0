"""What the optimizer reports, as curves: one class for both Kerases."""

import numbers
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lamb_tf import arguments
from lamb_tf.optimizer import LayerwiseOptimizer
from lamb_tf.update import native

try:
    import tf_keras
except ImportError:
    tf_keras = None

_HOSTS = [host for host in (keras, tf_keras) if host is not None]
# Of the columns of `LayerwiseOptimizer.trust_table`.
_TAGS = ("trust_ratio", "w_norm", "u_norm")
# Under these names a wrapper keeps the optimizer that it wraps: both
# Kerases' LossScaleOptimizer, and tf-models' ExponentialMovingAverage.
_INNER = ("inner_optimizer", "_optimizer")


class TrustRatioLogger(*(host.callbacks.Callback for host in _HOSTS)):
    """Writes each layer's trust ratio and norms for TensorBoard.

    For a variable `w` with the base update `u`, the scalars

        trust_ratio/PATH = trust_coefficient * phi(|w|) / |u|
        w_norm/PATH      = |w|
        u_norm/PATH      = |u|

    at the optimizer's count of updates, of the last update done. PATH is
    the variable's, as in `optimizer.describe()`. A variable that is not
    adapted has no curves, and one that no gradient has reached yet none
    so far.

    The optimizer computes the three inside its step in any case. They
    are read once in `every_n_steps` updates, by one transfer from the
    device; between two reads no step waits. The first update seen is
    logged too, and so is the last of a `fit`.

    One object serves `fit` in either Keras, or a custom loop by `log`.
    Under a strategy of several workers the chief alone writes.

    Args:
        log_dir: Folder of the event files, which is made at need.
        every_n_steps: Updates from one point of a curve to the next,
            `>= 1`.

    Raises:
        ValueError: If `every_n_steps` is out of range; as `fit` begins
            or at `log`, if the optimizer is no LAMB or LARS of lamb_tf,
            nor a wrapper of one.

    Example:
        In `fit`, `callbacks=[TrustRatioLogger("logs")]`. Otherwise:

        >>> import tempfile
        >>> import tensorflow as tf
        >>> from lamb_tf.callbacks import TrustRatioLogger
        >>> from lamb_tf.tf_keras import LAMB
        >>> w = tf.Variable([3.0, 4.0], name="w")
        >>> optimizer = LAMB(0.1)
        >>> with TrustRatioLogger(tempfile.mkdtemp(), 2) as logger:
        ...     for step in range(1, 6):
        ...         _ = optimizer.apply_gradients([(tf.ones(2), w)])
        ...         print(step, logger.log(optimizer, step))
        1 True
        2 True
        3 False
        4 True
        5 False
    """

    # Of tf_keras, whose __init__ is not called: it assigns `model`, which
    # is a property in Keras 3. To take logs as tensors is not to wait for
    # them at each step.
    _chief_worker_only = None
    _supports_tf_logs = True

    def __init__(self, log_dir: str | os.PathLike, every_n_steps: int = 100):
        keras.callbacks.Callback.__init__(self)
        self.log_dir = os.fspath(log_dir)
        self.every_n_steps = arguments.count(
            "every_n_steps", every_n_steps, 1, 2**31 - 1
        )
        self._writer = None
        self._last_step = None
        # Tags with a curve: from then on a NaN is news, and is written.
        self._begun = set()

    def log(self, optimizer: Any, step: int | None = None) -> bool:
        """Writes one point of each curve, if it is time.

        To be called after every update of a custom loop, outside any
        `tf.function`. It is time at the first call, when a multiple of
        `every_n_steps` is reached or passed, and after a step back.

        Args:
            optimizer: A LAMB or LARS of lamb_tf, or a wrapper of one.
            step: Updates done, as counted by the loop. `None` reads
                `optimizer.iterations`, for which an accelerator has to
                finish the step.

        Returns:
            Whether it was time.

        Raises:
            ValueError: If the optimizer is of another kind.
            RuntimeError: Inside a `tf.function`.
        """
        if not tf.executing_eagerly():
            raise RuntimeError(
                "TrustRatioLogger.log() must be called outside tf.function: "
                "inside it would run once, as the function is traced."
            )
        optimizer = _unwrapped(optimizer)
        step = _number(optimizer.iterations if step is None else step)
        if not self._is_due(step):
            return False
        self._write(optimizer, step)
        return True

    def close(self) -> None:
        """Completes the event file; a later point begins a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> "TrustRatioLogger":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def on_train_begin(self, logs=None) -> None:
        """Finds the optimizer; an error here is before the first step."""
        self._optimizer = _unwrapped(self.model.optimizer)
        # Keras 3 counts batches, of which several may make an update.
        self._batches_per_update = (
            getattr(self._optimizer, "gradient_accumulation_steps", None) or 1
        )
        self._fit_start = self._updates_done()

    def on_epoch_begin(self, epoch, logs=None) -> None:
        """Takes up the optimizer's count."""
        self._epoch_start = self._updates_done()

    def on_train_batch_begin(self, batch, logs=None) -> None:
        """Logs the updates up to the one before this batch, if due.

        Not `on_train_batch_end`: for its sake Keras 3 would wait for the
        loss of every batch.
        """
        # The optimizer's own count is on the device, and it may be lower,
        # where an overflow made it skip. So count first, and ask when due.
        guess = self._epoch_start + batch // self._batches_per_update
        if guess > self._fit_start and self._is_due(guess):
            step = self._updates_done()
            self._epoch_start += step - guess
            self._write_in_fit(step)

    def on_epoch_end(self, epoch, logs=None) -> None:
        """Logs the last update if due, and completes what is written."""
        self._write_in_fit(self._updates_done())
        if self._writer is not None:
            self._writer.flush()

    def on_train_end(self, logs=None) -> None:
        """Logs the last update and closes the event file."""
        step = self._updates_done()
        if step > self._fit_start and step != self._last_step:
            self._write(self._optimizer, step)
        self.close()
        del self._optimizer

    def _updates_done(self) -> int:
        return _number(self._optimizer.iterations)

    def _is_due(self, step: int) -> bool:
        last = self._last_step
        # A lower step is a run that goes on from before, or another run.
        if last is None or step < last:
            return True
        return step // self.every_n_steps > last // self.every_n_steps

    def _write_in_fit(self, step: int) -> None:
        if step > self._fit_start and self._is_due(step):
            self._write(self._optimizer, step)

    def _write(self, optimizer: LayerwiseOptimizer, step: int) -> None:
        self._last_step = step
        strategy = optimizer._distribution_strategy
        if strategy is not None and not strategy.extended.should_save_summary:
            return
        # One event with all values: an event each would cost as much as
        # a small model's step.
        summary = tf.compat.v1.Summary()
        for name, trust in _adapted(optimizer):
            if name not in self._begun and np.isnan(trust[1:]).all():
                continue
            self._begun.add(name)
            for tag, value in zip(_TAGS, trust, strict=True):
                summary.value.add(tag=f"{tag}/{name}", simple_value=value)
        if not summary.value:
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self.log_dir)
        # Keras's TensorBoard callback turns recording off between its own.
        with self._writer.as_default(), tf.summary.record_if(True):
            tf.summary.experimental.write_raw_pb(
                summary.SerializeToString(), step=step
            )


def _unwrapped(optimizer: Any) -> LayerwiseOptimizer:
    inner = optimizer
    while not isinstance(inner, LayerwiseOptimizer):
        for name in _INNER:
            if hasattr(inner, name):
                inner = getattr(inner, name)
                break
        else:
            raise ValueError(
                "TrustRatioLogger needs a LAMB or LARS of lamb_tf, or a "
                "wrapper of one such as LossScaleOptimizer; no other "
                "optimizer has trust ratios to log. Received: "
                f"{type(optimizer).__module__}.{type(optimizer).__name__}"
            )
    return inner


def _number(count: Any) -> int:
    """Returns a count of Python, NumPy, TensorFlow or either Keras."""
    if isinstance(count, numbers.Integral):
        return int(count)
    # By way of a tensor: a mirrored variable is no number to Python.
    return int(tf.convert_to_tensor(native(count)))


def _adapted(optimizer: LayerwiseOptimizer) -> list[tuple[str, np.ndarray]]:
    """Returns name and trust of each adapted variable, the read included."""
    entries = optimizer._layers()
    if not any(entry.layer.adapted for entry in entries):
        return []
    names = _distinct([entry.path for entry in entries])
    table = optimizer.trust_table().numpy()
    return [
        (name, trust)
        for entry, name, trust in zip(entries, names, table, strict=True)
        if entry.layer.adapted
    ]


def _distinct(paths: Sequence[str]) -> list[str]:
    """Returns the paths, numbered from their second occurrence on.

    `tf.Variable`s without a name are all called "Variable".
    """
    taken, names = set(), []
    for path in paths:
        name, count = path, 0
        while name in taken:
            count += 1
            name = f"{path}_{count}"
        taken.add(name)
        names.append(name)
    return names
