"""The state of another LAMB, put into one of ours: asked, then done."""

from typing import Any

import numpy as np
import tensorflow as tf

from lamb_tf.importers.states import PeerLayer, PeerState


def index_of(optimizer: Any, variable: Any) -> int | None:
    """Returns a variable's place in a built optimizer, if it has one."""
    indices = getattr(optimizer, "_trainable_variables_indices", None)
    if indices is None:
        indices = optimizer._index_dict
    return indices.get(optimizer._var_key(variable))


def kinds(optimizer: Any, state: PeerState) -> set[str]:
    """Returns which arrays of each variable the optimizer needs.

    Raises:
        ValueError: If the file has none of a kind, or if the state is
            of an optimizer that accumulates and ours does not.
    """
    held = {kind for layer in state.layers for kind in layer.arrays}
    kinds = {"m", "v"}
    if optimizer.use_ema:
        if "average" not in held:
            raise ValueError(
                f"{state.where} holds no moving averages. Create the "
                "optimizer with use_ema=False. Received: use_ema=True"
            )
        kinds.add("average")
    if "accumulator" in held:
        if not _accumulation_steps(optimizer):
            # Keras counts micro-steps, and the file has no count of updates.
            raise ValueError(
                f"{state.where} accumulated gradients. Create the optimizer "
                "with the same `gradient_accumulation_steps`, on Keras 3."
            )
        kinds.add("accumulator")
    return kinds


def check(
    path: str, variable: Any, layer: PeerLayer, kinds: set[str], where: str
) -> None:
    """Refuses a layer that lacks an array, or has one of another shape.

    Raises:
        ValueError: If so; the message has variable, file and remedy.
    """
    missing = sorted(kinds - layer.arrays.keys())
    if missing:
        raise ValueError(
            f"{where} holds no {missing[0]!r} of {path!r}, which is called "
            f"{layer.name!r} there. It has {sorted(layer.arrays)}. Save it "
            "again after a step that trains this variable."
        )
    for kind in sorted(kinds):
        shape, ours = layer.arrays[kind].shape, tuple(variable.shape)
        if shape != ours:
            raise ValueError(
                f"{kind!r} of {path!r} has shape {shape} in {where}, where it "
                f"is called {layer.name!r}; the variable has {ours}. If that "
                "is another variable, name the right one in `names`."
            )


def iterations(optimizer: Any, state: PeerState) -> int:
    """Returns the counter's value: micro-steps, where they are counted."""
    steps = _accumulation_steps(optimizer)
    if not steps or any("accumulator" in la.arrays for la in state.layers):
        return state.iterations
    return state.iterations * steps


def _accumulation_steps(optimizer) -> int | None:
    return getattr(optimizer, "gradient_accumulation_steps", None)


def remarks(optimizer: Any, state: PeerState, kinds: set[str]) -> list[str]:
    """Returns in what the optimizer differs from the one in the file."""
    theirs = dict(state.scalars)
    ours = {
        "beta_1": optimizer.rule.beta_1,
        "beta_2": optimizer.rule.beta_2,
        "weight_decay": optimizer.weight_decay,
    }
    follows_schedule = callable(optimizer._learning_rate)
    decay = theirs.pop("decay", 0.0)
    if decay and follows_schedule:
        theirs.pop("learning_rate", None)
    elif decay:
        ours["decay"], theirs["decay"] = 0.0, decay
    ours["learning_rate"] = (
        "a schedule" if follows_schedule else float(optimizer.learning_rate)
    )
    found = [
        f"{name} is {theirs[name]:.9g} there and stays {ours[name]} here"
        for name in theirs
        if ours[name] == "a schedule"
        or not np.isclose(theirs[name], ours[name], rtol=1e-6, atol=0.0)
    ]
    if state.source == "keras" and optimizer.weight_decay:
        found.append(
            "Keras's Lamb decays outside the trust ratio, this one inside"
        )
    if "average" not in kinds and any(
        "average" in layer.arrays for layer in state.layers
    ):
        found.append("its moving averages are left behind: use_ema=False")
    return found


def assign(
    optimizer: Any,
    variable: Any,
    arrays: dict[str, np.ndarray],
    kinds: set[str],
) -> None:
    """Sets what belongs to one variable; zeros where there is no array."""
    index = index_of(optimizer, variable)
    entry = optimizer._entries.value[index]
    if "weight" in kinds and "weight" in arrays:
        _set(variable, arrays["weight"])
        if entry.master is not None:
            _set(entry.master, arrays["weight"])
    for name, slot in zip(optimizer.rule.slots, entry.slots, strict=True):
        _set(slot, arrays.get(name, 0.0))
    if "average" in kinds:
        average = optimizer._model_variables_moving_average[index]
        _set(average, arrays.get("average", variable))
    if _accumulation_steps(optimizer):
        accumulator = optimizer._accumulated_gradients[index]
        _set(accumulator, arrays.get("accumulator", 0.0))


def _set(variable, value) -> None:
    value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
    variable.assign(tf.broadcast_to(value, variable.shape))
