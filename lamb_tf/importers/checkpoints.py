"""The state of a LAMB in an object-based `tf.train.Checkpoint`.

There are two layouts. OptimizerV2 of Keras 2 (TensorFlow Addons,
tf-models) has slots `m` and `v`, each with the variable it belongs to.
The optimizer of Keras 3 has lists in the order of its variables.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from lamb_tf.importers.states import PeerLayer, PeerState, doubts

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SCALARS = ("learning_rate", "beta_1", "beta_2", "weight_decay", "decay")
# Lists of a Keras 3 optimizer, and what they hold.
_LISTS = {
    "_trainable_variables": "weight",
    "_momentums": "m",
    "_velocities": "v",
    "_model_variables_moving_average": "average",
    "_accumulated_gradients": "accumulator",
}


def read(path: str, optimizer_path: str | None = None) -> PeerState:
    """Returns the state of the one LAMB in a file, as NumPy arrays.

    Args:
        path: Prefix of a checkpoint, or a folder with checkpoints or a
            SavedModel in it.
        optimizer_path: Path of attributes to the optimizer, such as
            `"optimizer"`, where there are several.

    Raises:
        ValueError: If there is no such file, or none or several LAMBs in
            it, or if a part of the state is missing.
    """
    prefix = _prefix(path)
    try:
        reader = tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(f"No checkpoint at {path!r}: {error}") from error
    if not reader.has_tensor(_GRAPH):
        raise ValueError(
            f"{path!r} is a name-based checkpoint, without objects. Restore "
            "it where it was written and save a `tf.train.Checkpoint`."
        )
    return _from_graph(_Graph(reader), path, optimizer_path)


def _prefix(path):
    if not tf.io.gfile.isdir(path):
        return path
    if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
        return os.path.join(path, "variables", "variables")
    latest = tf.train.latest_checkpoint(path)
    if latest is None:
        raise ValueError(f"No checkpoint in the folder {path!r}.")
    return latest


class _Graph:
    """The objects of a checkpoint, each with its children and values."""

    def __init__(self, reader: Any):
        self._reader = reader
        proto = trackable_object_graph_pb2.TrackableObjectGraph()
        proto.ParseFromString(reader.get_tensor(_GRAPH))
        self.nodes = proto.nodes
        self.paths = {0: ""}
        queue = [0]
        for node in queue:
            for name, child in self.children(node).items():
                if child not in self.paths:
                    self.paths[child] = f"{self.paths[node]}/{name}".strip("/")
                    queue.append(child)

    def children(self, node: int) -> dict[str, int]:
        return {c.local_name: c.node_id for c in self.nodes[node].children}

    def name(self, node: int) -> str | None:
        for attribute in self.nodes[node].attributes:
            return attribute.full_name
        return None

    def value(self, node: int) -> np.ndarray | None:
        for attribute in self.nodes[node].attributes:
            key = attribute.checkpoint_key
            if self._reader.has_tensor(key):
                return self._reader.get_tensor(key)
        return None

    def layer(self, variable: int, slots: dict[str, int]) -> PeerLayer:
        arrays = {name: self.value(node) for name, node in slots.items()}
        return PeerLayer(
            self.name(variable),
            self.paths.get(variable),
            {k: a for k, a in arrays.items() if a is not None},
        )


def _from_graph(graph, path, optimizer_path) -> PeerState:
    found = {graph.paths[i]: (i, kind) for i, kind in _optimizers(graph)}
    if optimizer_path is not None:
        found = {k: v for k, v in found.items() if k == optimizer_path}
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} optimizers with two moments in {path!r}"
            + (f" at {optimizer_path!r}" if optimizer_path else "")
            + (
                f": {sorted(found)}. Name one in `optimizer_path`."
                if found
                else ". Save the optimizer with the model, as in "
                "`tf.train.Checkpoint(model=model, optimizer=optimizer)`, "
                "after its first step."
            )
        )
    ((where, (node, kind)),) = found.items()
    where = f"{path} ({where or 'its root'})"
    if kind == "ours":
        raise ValueError(
            f"{where} was written by lamb_tf. Restore it with "
            "`tf.train.Checkpoint.restore()`."
        )
    return {"addons": _addons, "keras": _keras}[kind](graph, node, where)


def _optimizers(graph) -> Iterator[tuple[int, str]]:
    for index in graph.paths:
        node, children = graph.nodes[index], graph.children(index)
        if {"m", "v"} <= {slot.slot_name for slot in node.slot_variables}:
            yield index, "addons"
        elif {"_momentums", "_velocities"} <= children.keys():
            yield index, "keras"
        elif {"_m", "_v"} <= children.keys():
            yield index, "ours"


def _addons(graph, optimizer, where) -> PeerState:
    slots = {}
    for slot in graph.nodes[optimizer].slot_variables:
        variable = slot.original_variable_node_id
        slots.setdefault(variable, {"weight": variable})
        slots[variable][slot.slot_name] = slot.slot_variable_node_id
    left = {name for named in slots.values() for name in named}
    for other in graph.nodes:
        # Wrappers, such as tf-models' moving average, keep slots as well.
        for slot in other.slot_variables:
            left.add(slot.slot_name)
            named = slots.get(slot.original_variable_node_id, {})
            if slot.slot_name == "average":
                named["average"] = slot.slot_variable_node_id
    left -= {"weight", "m", "v", "average"}
    remarks = [f"its slots {sorted(left)} are left behind"] if left else []
    children = graph.children(optimizer)
    if "weight_decay_rate" in children:
        children["weight_decay"] = children["weight_decay_rate"]
    if "loss_scale" in children:
        remarks.append("its loss scale is left behind")
    if "weight_decay" not in children:
        remarks.append("it has no weight decay, as every LAMB of Addons has")
    return PeerState(
        source="addons",
        where=where,
        iterations=_iterations(graph, children.get("iter"), where),
        layers=[graph.layer(i, named) for i, named in slots.items()],
        scalars=_scalars(graph, children),
        remarks=remarks,
    )


def _keras(graph, optimizer, where) -> PeerState:
    children = graph.children(optimizer)
    lists = {
        kind: graph.children(children[name])
        for name, kind in _LISTS.items()
        if name in children
    }
    layers = []
    for i, variable in lists.get("weight", {}).items():
        slots = {k: nodes[i] for k, nodes in lists.items() if i in nodes}
        layers.append(graph.layer(variable, slots))
    counter = children.get("_iterations")
    iterations = _iterations(graph, counter, where)
    scalars = {"learning_rate": children.get("_learning_rate")}
    remarks = doubts(graph.name(counter).split("/")[0])
    for index in graph.paths:
        wrapper = graph.children(index)
        if wrapper.get("inner_optimizer") == optimizer:
            remarks.append("its loss scale is left behind")
    return PeerState(
        source="keras",
        where=where,
        iterations=iterations,
        layers=layers,
        scalars=_scalars(graph, scalars),
        remarks=remarks,
    )


def _iterations(graph, node, where) -> int:
    value = None if node is None else graph.value(node)
    if value is None:
        raise ValueError(f"{where} holds no number of iterations.")
    return int(value)


def _scalars(graph, children) -> dict[str, float]:
    values = {
        name: graph.value(children[name])
        for name in _SCALARS
        if children.get(name) is not None
    }
    return {k: float(v) for k, v in values.items() if v is not None}
