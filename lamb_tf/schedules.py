"""Learning-rate schedules that both Kerases accept.

A schedule maps `t`, the number of updates done before the one at hand
(Keras's `iterations`, so 0 at the first update), to its learning rate.
Each class is a `LearningRateSchedule` of Keras 3 and, where it is
installed, of tf_keras as well: the two are bare interfaces, and one
object serves the optimizers of both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from lamb_tf import arguments

try:
    import tf_keras
except ImportError:
    tf_keras = None

_HOSTS = [host for host in (keras, tf_keras) if host is not None]


def _base_class(host):
    return host.optimizers.schedules.LearningRateSchedule


class Schedule(*map(_base_class, _HOSTS)):
    """A schedule of a known length, in updates."""

    total_steps: int

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate of update `step`, a float32 scalar.

        Args:
            step: Updates done before; an integer scalar of Python,
                NumPy or TensorFlow.
        """
        return self._rate(tf.cast(tf.convert_to_tensor(step), tf.int32))

    def _rate(self, step: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


def _register(cls):
    for host in _HOSTS:
        host.saving.register_keras_serializable("lamb_tf", cls.__name__)(cls)
    return cls


@_register
class WarmupPolynomialDecay(Schedule):
    """A linear warm-up from zero, then a polynomial decay.

    With `W = warmup_steps`, `T = total_steps`, `eta = learning_rate`,

        eta_t = peak * t / W                                     t < W
        eta_t = end + (eta - end) * ((T - t) / D) ** power   W <= t < T
        eta_t = end                                             T <= t

    `peak="configured"`: the warm-up ends at `eta` itself; `peak = eta`
    and `D = T - W`. `peak="on_decay_curve"`: the warm-up ends on the
    curve that decays from step 0; `D = T`, and `peak` is that curve at
    `W`. Both are continuous, and without a warm-up both are the paper's
    `eta * (1 - t / T)` for `power=1`. The first update of a warm-up has
    learning rate 0: it fills the moments and leaves the weights.

    `T - t` is taken in integers, so the last steps lose no digits.

    Example:
        >>> from lamb_tf.schedules import WarmupPolynomialDecay
        >>> schedule = WarmupPolynomialDecay(0.5, 4, 8)
        >>> [float(schedule(t)) for t in range(9)]
        [0.0, 0.125, 0.25, 0.375, 0.5, 0.375, 0.25, 0.125, 0.0]

    References:
        arXiv:1904.00962v5, section 4. The paper leaves the start of the
        warm-up and the peak open; `peak` names our two readings.
    """

    def __init__(
        self,
        learning_rate: float,
        warmup_steps: int,
        total_steps: int,
        power: float = 1.0,
        end: float = 0.0,
        peak: Literal["configured", "on_decay_curve"] = "configured",
    ):
        """Creates the schedule.

        Args:
            learning_rate: The rate the decay starts from, `>= 0`.
            warmup_steps: Updates of the warm-up, `0 <= W <= T`.
            total_steps: Updates until the rate is `end`, `>= 1`.
            power: Exponent of the decay, `> 0`.
            end: The rate from `total_steps` on, `>= 0`.
            peak: Where the warm-up ends: `configured` or
                `on_decay_curve`.

        Raises:
            ValueError: If an argument is outside its range.
        """
        self.learning_rate = arguments.number("learning_rate", learning_rate)
        self.total_steps = arguments.count(
            "total_steps", total_steps, 1, 2**31 - 1
        )
        self.warmup_steps = arguments.count(
            "warmup_steps", warmup_steps, 0, self.total_steps
        )
        self.power = arguments.positive("power", power)
        self.end = arguments.number("end", end)
        if peak not in ("configured", "on_decay_curve"):
            raise ValueError(
                "`peak` must be 'configured' or 'on_decay_curve'. "
                f"Received: peak={peak!r}"
            )
        self.peak = peak

    def _rate(self, step):
        warmup, total = self.warmup_steps, self.total_steps
        decay_steps, peak = total - warmup, self.learning_rate
        if self.peak == "on_decay_curve":
            decay_steps = total
            share = ((total - warmup) / total) ** self.power
            peak = self.end + (self.learning_rate - self.end) * share
        left = tf.cast(tf.maximum(total - step, 0), tf.float32)
        share = left / max(decay_steps, 1)
        if self.power != 1.0:
            share = tf.pow(share, self.power)
        rate = self.end + (self.learning_rate - self.end) * share
        if not warmup:
            return rate
        rising = tf.cast(step, tf.float32) / warmup * peak
        return tf.where(step < warmup, rising, rate)

    def get_config(self) -> dict[str, Any]:
        """Returns every constructor argument."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "power": self.power,
            "end": self.end,
            "peak": self.peak,
        }


@_register
class MixedBatch(Schedule):
    """Phases one after another over the global step.

    Phase `i` starts at the sum of the `total_steps` of those before it
    and is called with the steps since its start, so that each phase
    warms up from zero again. After the last phase the rate stays at its
    `end`.

    Example:
        >>> from lamb_tf.schedules import MixedBatch, WarmupPolynomialDecay
        >>> phases = [(0.5, 2, 4), (1.0, 1, 3)]
        >>> schedule = MixedBatch([WarmupPolynomialDecay(*p) for p in phases])
        >>> [float(schedule(t)) for t in range(8)]
        [0.0, 0.25, 0.5, 0.25, 0.0, 1.0, 0.5, 0.0]

    References:
        arXiv:1904.00962v5, section 4: the run with batches of 64k and 32k.
    """

    def __init__(self, phases: Sequence[WarmupPolynomialDecay]):
        """Creates the schedule.

        Args:
            phases: `WarmupPolynomialDecay`s, or their configs.

        Raises:
            ValueError: If there is no phase, or one of another kind.
        """
        if isinstance(phases, (str, dict)) or not phases:
            raise ValueError(
                "`phases` must be a list of one or more "
                f"WarmupPolynomialDecay. Received: phases={phases!r}"
            )
        self.phases = [
            WarmupPolynomialDecay(**phase) if isinstance(phase, dict) else phase
            for phase in phases
        ]
        for phase in self.phases:
            if not isinstance(phase, WarmupPolynomialDecay):
                raise ValueError(
                    "`phases` must hold WarmupPolynomialDecay. "
                    f"Received: {phase!r}"
                )
        self.total_steps = sum(phase.total_steps for phase in self.phases)
        if self.total_steps >= 2**31:
            raise ValueError(
                "The phases together must stay below 2**31 steps. "
                f"Received: {self.total_steps}"
            )

    def _rate(self, step):
        first, *others = self.phases
        rate, start = first(step), first.total_steps
        for phase in others:
            rate = tf.where(step < start, rate, phase(step - start))
            start += phase.total_steps
        return rate

    def get_config(self) -> dict[str, Any]:
        """Returns the configs of the phases."""
        return {"phases": [phase.get_config() for phase in self.phases]}


@_register
class Adopted(Schedule):
    """A schedule of the other Keras, or a function without arguments.

    Keras 3 would call either one without arguments, and tf_keras only
    once. A function is called at each eager step, but only at the
    tracing of a `tf.function`, as all Python is.
    """

    def __init__(self, rate: Callable[..., Any]):
        """Creates the schedule.

        Args:
            rate: A schedule of either Keras, or a function; or what
                `get_config` made of one.
        """
        self.rate = _restored(**rate) if isinstance(rate, dict) else rate
        self._host = next(
            (h for h in _HOSTS if isinstance(self.rate, _base_class(h))), None
        )

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate of update `step`, a float32 scalar."""
        rate = self.rate() if self._host is None else self.rate(step)
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Returns the schedule or function, as its Keras serializes it."""
        if self._host is None:
            saved = keras.saving.serialize_keras_object(self.rate)
            return {"rate": {"function": saved}}
        saved = self._host.optimizers.schedules.serialize(self.rate)
        return {"rate": {self._host.__name__: saved}}


def adopted(rate: Callable[..., Any]) -> Schedule:
    """Returns a schedule of both Kerases from one of either, or a function.

    Args:
        rate: A schedule of either Keras, or a function that takes no
            arguments and returns a rate.
    """
    return rate if isinstance(rate, Schedule) else Adopted(rate)


def _restored(function=None, **schedules):
    if function is not None:
        return keras.saving.deserialize_keras_object(function)
    for host in _HOSTS:
        if host.__name__ in schedules:
            saved = schedules[host.__name__]
            return host.optimizers.schedules.deserialize(saved)
    raise ValueError(
        f"A schedule of {', '.join(schedules)} needs that Keras installed."
    )
