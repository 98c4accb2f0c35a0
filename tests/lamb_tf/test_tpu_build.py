"""The update builds for a TPU. None is here: nothing of this ran on one."""

import json

import pytest
import tensorflow as tf

from tests.lamb_tf import processes, tpu_program

# Operations that leave the device, or whose shapes depend on values.
NOT_ON_A_TPU = {
    "EagerPyFunc",
    "NonZero",
    "Print",
    "PrintV2",
    "PyFunc",
    "PyFuncStateless",
    "StringFormat",
    "Unique",
    "UniqueV2",
    "Where",
    "XlaHostCompute",
    "XlaRecvFromHost",
    "XlaSendToHost",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    # A process of its own: a `TPUStrategy` changes the runtime.
    path = tmp_path_factory.mktemp("tpu") / "reports.json"
    processes.run_together("tests.lamb_tf.tpu_program", [[str(path)]], [{}])
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", tpu_program.CASES)
def test_a_step_lowers_for_the_cores_of_a_tpu(reports, case):
    report = reports[case]
    assert report["left"] == []
    assert report["dynamic"] == []
    assert not NOT_ON_A_TPU & set(report["ops"])
    # Each core has its own copy of every variable.
    assert report["shared"] == []
    # What an update changes it changes in place: nothing is allocated for
    # weights, slots, masters, averages, ratios and the counter.
    host, name, arguments = tpu_program.CASES[case]
    count = len(tpu_program.VARIABLES)
    slots = {"LAMB": 2, "LARS": 1}[name]
    more = "use_ema" in arguments, "gradient_accumulation_steps" in arguments
    # Weights, ratios and the rest; a master; the counter.
    expected = count * (2 + slots + sum(more)) + 1 + 1
    assert report["written in place"] == expected
    (rate,) = report["read only"]
    assert "learning_rate" in rate


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_a_step_for_a_tpu_is_one_program_without_callbacks(host, name):
    variables = [
        host.variable(tf.ones(shape), variable, dtype)
        for variable, (shape, dtype) in tpu_program.VARIABLES.items()
    ]
    optimizer = getattr(host, name)(0.1, weight_decay=0.1, global_clipnorm=1.0)
    optimizer.target_platform = "TPU"
    optimizer.build(variables)

    @tf.function(jit_compile=True)
    def step(grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    grads = [tf.ones(s, d) for s, d in tpu_program.VARIABLES.values()]
    text = step.experimental_get_compiler_ir(grads)(stage="hlo")
    assert "custom-call" not in text
    assert "<=" not in text  # A bounded dynamic dimension.
    # Weights, slots, ratios, the master copy and the counter: in place.
    slots = {"LAMB": 2, "LARS": 1}[name]
    written = len(variables) * (2 + slots) + 2
    assert text.splitlines()[0].count("may-alias") == written
    # No norm is shaped for a CPU, by blocks of 32 rows.
    assert "f32[2,32,32]" not in text
