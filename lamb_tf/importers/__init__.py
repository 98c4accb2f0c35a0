"""A run begun with another LAMB goes on with this one.

Two steps, both of which refuse what they do not understand:

    optimizer = importers.optimizer_from_config(peer.get_config())
    report = importers.load_state(optimizer, model, "run/ckpt-1000")

The peers are TensorFlow Addons' LAMB, tf-models' `LAMB` and Keras 3's
`Lamb`; none of them need be installed.
"""

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lamb_tf.exclusions import path_of
from lamb_tf.importers import checkpoints, configs, h5, matching, transfer


def optimizer_from_config(
    config: Mapping[str, Any], optimizer_class: type | None = None, **overrides
) -> Any:
    """Creates a `LAMB` with the arguments of another one.

    Where the run will go on differently, a warning says in what.

    Args:
        config: What the peer's `get_config()`, or either Keras's
            `optimizers.serialize()`, returns; or the `as_dict()` of
            tf-models' `LAMBConfig`, `OptimizerConfig` or
            `OptimizationConfig`. It stays unchanged.
        optimizer_class: `lamb_tf.keras.LAMB`, `lamb_tf.tf_keras.LAMB`
            or one derived from them; `None` for `lamb_tf.LAMB`.
        **overrides: Arguments of ours that stand whatever the config
            says, or that it does not say: the exclusions of a peer that
            does not save them, a learning rate.

    Returns:
        The optimizer, not built.

    Raises:
        ValueError: If the config is of no LAMB, or if an argument is
            unknown, missing, or has no counterpart.
    """
    if optimizer_class is None:
        import lamb_tf

        optimizer_class = lamb_tf.LAMB
    keras = _keras_of(optimizer_class)
    arguments, differences = configs.translate(
        config, overrides, on_keras_3=keras.__name__ == "keras"
    )
    arguments["learning_rate"] = configs.schedule(
        arguments["learning_rate"], keras
    )
    optimizer = optimizer_class(**arguments)
    for difference in differences:
        warnings.warn(
            f"The imported run goes on differently: {difference}.", stacklevel=2
        )
    return optimizer


@dataclasses.dataclass(frozen=True)
class Report:
    """What was loaded; `print` it.

    Attributes:
        where: The file, and the optimizer in it.
        iterations: The updates done.
        mapped: The peer's name of each of our variables, by our path.
        without_state: Our variables that the file has nothing of.
        left_behind: The file's variables that are none of ours.
        remarks: Whatever else differs; each was a warning too.
    """

    where: str
    iterations: int
    mapped: dict[str, str]
    without_state: list[str]
    left_behind: list[str]
    remarks: list[str]

    def __str__(self) -> str:
        rows = [*self.mapped.items()]
        rows += [(path, "(starts at zero)") for path in self.without_state]
        rows += [("(left behind)", name) for name in self.left_behind]
        width = max(len(path) for path, _ in rows)
        return "\n".join(
            [
                f"m and v at iteration {self.iterations} from {self.where}",
                *(f"  {path.ljust(width)}  {name}" for path, name in rows),
                *(f"  {remark}" for remark in self.remarks),
            ]
        )


def load_state(
    optimizer: Any,
    model_or_variables: Any,
    path: str,
    *,
    names: Mapping[str, str] | None = None,
    allow_unmatched: Sequence[str] = (),
    optimizer_path: str | None = None,
    weights: bool = False,
) -> Report:
    """Loads the moments and iterations of another LAMB.

    Everything is checked before anything is changed. An optimizer that
    is not built is built. Variables are matched by name: by the layer's
    and the variable's own name at least, as Keras 3 puts a model's name
    before them. In `.keras` and `.weights.h5` they have none, and are
    matched by position.

    The learning rate, the betas and the decay stay those of `optimizer`;
    where the file has others, a warning says so.

    Args:
        optimizer: A `LAMB` of either Keras.
        model_or_variables: A model, whose trainable variables are meant,
            or the variables that `optimizer` trains.
        path: Prefix of a `tf.train.Checkpoint`, the folder of one or of
            a SavedModel, or a `.keras` or `.weights.h5` file.
        names: The names in the checkpoint, or the paths of attributes,
            of variables that their own name does not find; by our path.
        allow_unmatched: Regular expressions. Variables of either side
            whose name one of them is found in may stay without partner;
            ours then start with moments of zero.
        optimizer_path: Path of attributes to the optimizer in the
            checkpoint, such as `"optimizer"`, if it has several.
        weights: Whether to set the variables as well, to the weights
            that the checkpoint holds of them. Those without a partner,
            and those that are not trained, keep theirs; where the model
            is of the same Keras, `tf.train.Checkpoint(model=model)`
            restores them all.

    Returns:
        A `Report`; its `str` lists what was mapped.

    Raises:
        ValueError: If the file holds no such state, if a variable has no
            partner or several, if shapes differ, or if a part is
            missing. The optimizer is then as it was.
    """
    variables = _variables(optimizer, model_or_variables)
    paths = [path_of(v) for v in variables]
    state = _read(os.fspath(path), optimizer_path)
    pairs = _pairs(paths, state, names or {}, allow_unmatched)
    kinds = transfer.kinds(optimizer, state)
    if weights:
        if not any("weight" in layer.arrays for layer in state.layers):
            raise ValueError(
                f"{state.where} is read for its optimizer only: load the "
                "weights with `model.load_weights()`. Received: weights=True"
            )
        kinds.add("weight")
    for i, j in pairs.items():
        transfer.check(
            paths[i], variables[i], state.layers[j], kinds, state.where
        )
    iterations = transfer.iterations(optimizer, state)
    remarks = [*state.remarks, *transfer.remarks(optimizer, state, kinds)]

    # From here on nothing fails: the optimizer changes as a whole.
    if not optimizer._entries.value:
        optimizer.build(variables)
    for i, variable in enumerate(variables):
        j = pairs.get(i)
        arrays = {} if j is None else state.layers[j].arrays
        transfer.assign(optimizer, variable, arrays, kinds)
    optimizer._iterations.assign(iterations)
    report = Report(
        where=state.where,
        iterations=state.iterations,
        mapped={paths[i]: _label(state, j) for i, j in pairs.items()},
        without_state=[p for i, p in enumerate(paths) if i not in pairs],
        left_behind=[
            _label(state, j)
            for j in range(len(state.layers))
            if j not in pairs.values()
        ],
        remarks=remarks,
    )
    for remark in remarks:
        warnings.warn(f"{state.where}: {remark}.", stacklevel=2)
    return report


def _keras_of(optimizer_class):
    import keras

    if issubclass(optimizer_class, keras.optimizers.Optimizer):
        return keras
    import tf_keras

    return tf_keras


def _variables(optimizer, model_or_variables) -> list[Any]:
    if getattr(getattr(optimizer, "rule", None), "slots", 0) != ("m", "v"):
        raise ValueError(
            "`optimizer` must be a LAMB of lamb_tf; of a wrapper, pass the "
            f"inner optimizer. Received: {type(optimizer).__name__}"
        )
    variables = getattr(
        model_or_variables, "trainable_variables", model_or_variables
    )
    variables = list(variables)
    if not variables:
        raise ValueError(
            "There are no variables: build the model first, for instance "
            "by calling it on a batch."
        )
    places = range(len(optimizer._entries.value))
    if places and set(places) != {
        transfer.index_of(optimizer, variable) for variable in variables
    }:
        raise ValueError(
            "The optimizer was built for other variables than those given. "
            f"It trains {[e.path for e in optimizer._entries.value][:8]}; "
            f"given are {[path_of(v) for v in variables][:8]}."
        )
    return variables


def _read(path, optimizer_path):
    if not path.endswith(h5.SUFFIXES):
        return checkpoints.read(path, optimizer_path)
    if optimizer_path is not None:
        raise ValueError(
            f"{path!r} holds one optimizer, and no paths. Leave out "
            f"`optimizer_path`. Received: optimizer_path={optimizer_path!r}"
        )
    return h5.read(path)


def _pairs(paths, state, names, allow_unmatched) -> dict[int, int]:
    layers = state.layers
    if all(layer.name is not None for layer in layers):
        theirs = [(layer.name, layer.key) for layer in layers]
        return matching.match(paths, theirs, names, allow_unmatched)
    if names or allow_unmatched:
        raise ValueError(
            f"{state.where} holds no names, and matches by position only. "
            "Leave out `names` and `allow_unmatched`."
        )
    if len(layers) != len(paths):
        raise ValueError(
            f"{state.where} holds moments of {len(layers)} variables, and "
            f"{len(paths)} are given. It holds no names, so they must be "
            "all, in the order of the model's trainable variables."
        )
    return {i: i for i in range(len(paths))}


def _label(state, j) -> str:
    return state.layers[j].name or f"(position {j})"
