"""A step under a real `TPUStrategy` on TPUs that are not there.

    python -m tests.lamb_tf.tpu_program OUT.json

The strategy is told of cores by made-up metadata. It traces the step as
on a TPU; passes of TensorFlow's own bridge then lower the part that a
core would run to StableHLO. Whatever has no kernel there stays an
operation of TensorFlow. No TPU runs anything.
"""

import json
import re
import sys
import warnings

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.client.session import _DeviceAttributes
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from tests.lamb_tf.conftest import HOSTS

CORES = 2
ON_ALL_REPLICAS = {"global_clipnorm": 1.0, "use_ema": True}
CASES = {
    f"{host}/{case}": (host, name, arguments)
    for host in HOSTS
    for case, name, arguments in (
        ("LAMB", "LAMB", {}),
        ("clipped", "LAMB", ON_ALL_REPLICAS | {"ema_overwrite_frequency": 2}),
        ("linf", "LAMB", {"norm": "linf", "nesterov": "both"}),
        ("LARS", "LARS", {"variant": "you2017", "clipnorm": 1.0}),
    )
} | {
    "keras/accumulating": ("keras", "LAMB", {"gradient_accumulation_steps": 2})
}
VARIABLES = {
    "kernel": ((64, 32), "float32"),
    "other_kernel": ((64, 32), "float32"),
    "bias": ((32,), "float32"),
    "scale": ((), "float32"),
    "half_kernel": ((16, 8), "bfloat16"),
}


class Cores(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Tells of cores on this machine."""

    def __init__(self):
        self._tpu = "none"
        self.task_type = self.task_id = None

    def get_tpu_system_metadata(self):
        name = "/job:localhost/replica:0/task:0/device:TPU:%d"
        devices = [
            _DeviceAttributes(name % core, "TPU", 0, 0) for core in range(CORES)
        ]
        return TPUSystemMetadata(CORES, 1, CORES, None, devices)

    def cluster_spec(self):
        return None

    def master(self, *arguments, **keywords):
        return ""

    def num_accelerators(self, *arguments, **keywords):
        return {"TPU": CORES}


def strategy_without_a_tpu() -> tf.distribute.TPUStrategy:
    # The variables land on the CPU.
    tf.config.set_soft_device_placement(True)
    strategy = tf.distribute.TPUStrategy(Cores())
    strategy._enable_packed_variable_in_eager_mode = False
    return strategy


def traced(strategy, host, name, arguments):
    """Returns the concrete function of a step of one optimizer."""
    with strategy.scope():
        variables = [
            host.variable(tf.ones(shape), variable, dtype)
            for variable, (shape, dtype) in VARIABLES.items()
        ]
        optimizer = getattr(host, name)(
            0.1,
            weight_decay=0.1,
            exclude_from_weight_decay=["bias"],
            **arguments,
        )
        optimizer.target_platform = "TPU"
        optimizer.build(variables)

    @tf.function(autograph=False)
    def step(grads):
        strategy.run(
            lambda grads: optimizer.apply_gradients(
                list(zip(grads, variables, strict=True))
            ),
            args=(grads,),
        )

    return step.get_concrete_function(
        [tf.TensorSpec(shape, dtype) for shape, dtype in VARIABLES.values()]
    )


def of_one_core(concrete):
    """Returns a function of what one core runs, with variables of its own.

    Returns:
        The function, and the specs of its arguments.
    """
    graph = concrete.graph
    inside = [
        op
        for op in graph.get_operations()
        if "_tpu_replicate" in op.node_def.attr
        and op.type != "TPUReplicateMetadata"
    ]
    names = {op.name for op in inside}
    inputs = {
        tensor.name: tensor
        for op in inside
        for tensor in op.inputs
        if tensor.op.name not in names
    }
    definition = graph_pb2.GraphDef()
    whole = graph.as_graph_def()
    definition.versions.CopyFrom(whole.versions)
    definition.library.CopyFrom(whole.library)
    for node in whole.node:
        if node.name in names:
            definition.node.add().CopyFrom(node)
    placed = [*definition.node]
    for function in definition.library.function:
        placed += function.node_def
    for node in placed:
        node.device = ""
        for key in ("_tpu_replicate", "_class", "_output_shapes"):
            node.attr.pop(key, None)
    for node in definition.node:
        kept = [
            name
            for name in node.input
            if not name.startswith("^") or name[1:] in names
        ]
        del node.input[:]
        node.input.extend(kept)

    def source(tensor):
        if tensor.op.type == "TPUReplicatedInput":
            return tensor.op.inputs[0]  # Of the first replica.
        return tensor

    captures = dict(
        zip(
            [tensor.name for tensor in concrete.inputs][
                -len(concrete.captured_inputs) :
            ],
            concrete.captured_inputs,
            strict=True,
        )
    )
    fed = [
        (name, source(tensor))
        for name, tensor in sorted(inputs.items())
        if source(tensor).dtype != tf.resource
        and source(tensor).op.type != "Const"
    ]

    def core(*values):
        mapped = dict(zip([name for name, _ in fed], values, strict=True))
        for name, tensor in inputs.items():
            tensor = source(tensor)
            if tensor.dtype == tf.resource:
                handle = captures[tensor.name]._handle_data.shape_and_type[0]
                mapped[name] = tf.raw_ops.VarHandleOp(
                    dtype=handle.dtype,
                    shape=handle.shape,
                    shared_name=name.replace(":", "_"),
                    container="",
                )
            elif tensor.op.type == "Const":
                mapped[name] = tf.constant(
                    tf.get_static_value(tensor), tensor.dtype
                )
        ends = tf.graph_util.import_graph_def(
            definition,
            mapped,
            [op.name for op in inside if op.op_def.is_stateful],
            name="",
        )
        with tf.control_dependencies(ends):
            return tf.constant(0)  # What it does is to its variables.

    return core, [tf.TensorSpec(t.shape, t.dtype) for _, t in fed]


def shared_by_cores(concrete) -> list[str]:
    """Returns the variables of which cores have no copy of their own."""
    captures = {
        tensor.name: captured._id
        for tensor, captured in zip(
            concrete.inputs[-len(concrete.captured_inputs) :],
            concrete.captured_inputs,
            strict=True,
        )
    }
    replicated = [
        op
        for op in concrete.graph.get_operations()
        if op.type == "TPUReplicatedInput"
        and op.outputs[0].dtype == tf.resource
    ]
    own = set()
    for op in replicated:
        copies = {captures[tensor.name] for tensor in op.inputs}
        if len(copies) == CORES:
            own |= copies
    return sorted(name for name, key in captures.items() if key not in own)


def lowered(concrete) -> str:
    """Returns what one core runs, as StableHLO."""
    core, specs = of_one_core(concrete)
    function = tf.function(core, autograph=False)
    text = tf.mlir.experimental.convert_function(
        function.get_concrete_function(*specs), pass_pipeline=""
    )
    name = re.search(r"func.func @(__inference_core_\d+)\(", text).group(1)
    text = text.replace(f"@{name}(", "@main(")
    for pipeline in (
        "tf-standard-pipeline",
        "inline,tf-promote-var-handles-to-args,"
        "func.func(tf-device-decompose-resource-ops),tf-shape-inference,"
        "tf-promote-resources-to-args,canonicalize,tf-shape-inference",
        "tf-functional-control-flow-to-regions,"
        "xla-legalize-tf{device-type=XLA_TPU_JIT prefer-tf2xla=false "
        "use-tf2xla-fallback=true},canonicalize,cse,"
        "hlo-legalize-to-stablehlo,symbol-dce",
    ):
        text = tf.mlir.experimental.run_pass_pipeline(text, pipeline)
    return text


def report(concrete) -> dict:
    graph = concrete.graph.as_graph_def()
    nodes = [*graph.node]
    for function in graph.library.function:
        nodes += function.node_def
    text = lowered(concrete)
    head = next(line for line in text.splitlines() if "@main(" in line)
    arguments = re.findall(r"%arg\d+: \S+ (\{[^}]*\})?", head)
    variables = [a for a in arguments if "tf.resource_name" in a]
    return {
        "ops": sorted({node.op for node in nodes}),
        "left": sorted(set(re.findall(r'"tf\.(\w+)"', text))),
        "dynamic": re.findall(r"tensor<[^>]*\?[^>]*>", text),
        "written in place": len(
            [a for a in variables if "tf.aliasing_output" in a]
        ),
        "read only": [
            re.search(r'tf.resource_name = "([^"]*)"', a).group(1)
            for a in variables
            if "tf.aliasing_output" not in a
        ],
        "shared": shared_by_cores(concrete),
        "stablehlo": text,
    }


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    strategy = strategy_without_a_tpu()
    assert strategy.num_replicas_in_sync == CORES
    reports = {}
    for case, (host, name, arguments) in CASES.items():
        concrete = traced(strategy, HOSTS[host], name, arguments)
        reports[case] = report(concrete)
        print("done", case, flush=True)
    with open(path, "w") as file:
        json.dump(reports, file)


if __name__ == "__main__":
    main(sys.argv[1])
