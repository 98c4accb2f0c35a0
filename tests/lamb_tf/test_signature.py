"""Every constructor argument of LAMB and LARS, on both Kerases.

Each changes the result that it is there to change, and each bad value is
a `ValueError` that names argument and value. The tables below are held
against the signatures, so that a new argument cannot be forgotten.
"""

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import shared_arguments
from tests.lamb_tf import problems
from tests.lamb_tf.conftest import HOSTS

SHAPES = {"kernel": (4, 3), "gamma": (4, 3)}
# What every run has.
COMMON = {
    "LAMB": {"learning_rate": 0.1, "weight_decay": 0.1, "epsilon": 0.1},
    "LARS": {"learning_rate": 0.1, "weight_decay": 0.1},
}
# The ratio would hide the size of a gradient, and LAMB's default epsilon.
SIZED = {"exclude_from_layer_adaptation": ["."]}
EMA = {"use_ema": True, "ema_overwrite_frequency": 2}
# Argument: a value that is not the default, and what is set beside it in
# both runs.
STRATEGY = {
    "learning_rate": (0.2, {}),
    "weight_decay": (0.5, {}),
    "exclude_from_weight_decay": (
        ["gamma"],
        {"exclude_from_layer_adaptation": []},
    ),
    "exclude_from_layer_adaptation": (["gamma"], {}),
    "trust_clip": ((0.1, 0.2), {}),
    "norm": ("l1", {}),
}
BASE = {
    "clipnorm": (0.05, SIZED),
    "clipvalue": (0.05, SIZED),
    "global_clipnorm": (0.05, SIZED),
    "use_ema": (True, {"ema_overwrite_frequency": 2}),
    "ema_momentum": (0.5, EMA),
    "ema_overwrite_frequency": (2, {"use_ema": True}),
}
OF_HOST = {
    "keras": {
        "loss_scale_factor": (8.0, SIZED),
        "gradient_accumulation_steps": (2, {}),
    },
    "tf_keras": {},
}
OWN = {
    "LAMB": {
        "beta_1": (0.5, {}),
        "beta_2": (0.5, {}),
        "epsilon": (0.5, {}),
        "bias_correction": (False, SIZED),
        "nesterov": ("both", {}),
    },
    "LARS": {
        "momentum": (0.5, {}),
        "trust_coefficient": (0.5, {}),
        "variant": ("you2017", {}),
        "nesterov": (True, {}),
    },
}
# What an argument does that no weight shows; tested by name below.
UNSEEN = {
    "keras": {"name"},
    "tf_keras": {"name", "jit_compile", "mesh"},  # test_sharded.py
}
ALGORITHMS = ["LAMB", "LARS"]


def table(host_name, algorithm):
    return {**STRATEGY, **BASE, **OF_HOST[host_name], **OWN[algorithm]}


def names_of(host, algorithm):
    """Returns the constructor's arguments, those of the base with them."""
    cls = getattr(host, algorithm)
    names = set(inspect.signature(cls.__init__).parameters)
    names -= {"self", "base_kwargs"}
    names |= {*shared_arguments.BASE_CHECKS, *cls._base_checks}
    return names - {"is_legacy_optimizer"}


RUNS = {}


def weights_after(host, algorithm, arguments):
    key = host.name, algorithm, repr(arguments)
    if key not in RUNS:
        weights, gradients = problems.make(shapes=SHAPES, steps=4)
        cls = getattr(host, algorithm)
        # Without XLA where one may: it takes longer than the steps.
        quick = {} if host.name == "keras" else {"jit_compile": False}
        optimizer = cls(**{**COMMON[algorithm], **quick, **arguments})
        RUNS[key] = problems.train(host, optimizer, weights, gradients)
    return RUNS[key]


def changed(host, algorithm, argument):
    """Returns the names of the weights that the argument changes."""
    value, beside = table(host.name, algorithm)[argument]
    without = weights_after(host, algorithm, beside)
    ends = weights_after(host, algorithm, {**beside, argument: value})
    return {k for k in ends if np.abs(ends[k] - without[k]).max() > 1e-3}


CASES = [
    (host_name, algorithm, argument)
    for host_name in HOSTS
    for algorithm in ALGORITHMS
    for argument in table(host_name, algorithm)
]


@pytest.mark.parametrize(("host_name", "algorithm", "argument"), CASES)
def test_an_argument_changes_the_weights(host_name, algorithm, argument):
    should = {"gamma"} if "exclude" in argument else {"gamma", "kernel"}
    assert changed(HOSTS[host_name], algorithm, argument) == should


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_argument_is_forgotten(host, algorithm):
    covered = {*table(host.name, algorithm), *UNSEEN[host.name]}
    assert covered == names_of(host, algorithm)
    bad = {argument for argument, _ in BAD if argument in covered}
    assert bad == covered
    documentation = getattr(host, algorithm).__init__.__doc__
    if algorithm == "LAMB":  # That of LARS refers to it.
        for name in covered:
            assert re.search(rf"\b{name}\b", documentation), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_config_keys_are_the_argument_names(host, algorithm):
    config = getattr(host, algorithm)().get_config()
    # tf_keras's own mark, by which it tells its two kinds of optimizers.
    config.pop("is_legacy_optimizer", None)
    # A mesh is of the machine, and in no config.
    assert set(config) == names_of(host, algorithm) - {"mesh"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_name_is_that_of_optimizer_and_scope(host, algorithm):
    optimizer = getattr(host, algorithm)(name="other.one")
    assert optimizer.name == "other.one"
    assert getattr(host, algorithm)().name == algorithm
    w = host.variable([1.0], "w")
    step = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
    graph = step.get_concrete_function(tf.ones([1])).graph
    assert any(
        op.name.startswith("other.one/") for op in graph.get_operations()
    )


def compiles(optimizer, w):
    step = tf.function(lambda g: optimizer.apply_gradients([(g, w)]))
    graph = step.get_concrete_function(tf.ones([1])).graph.as_graph_def()
    return any("_XlaMustCompile" in f.attr for f in graph.library.function)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_jit_compile_decides_whether_xla_is_used(algorithm):
    host = HOSTS["tf_keras"]
    for jit_compile in (True, False):
        optimizer = getattr(host, algorithm)(jit_compile=jit_compile)
        w = host.variable([1.0], "w")
        assert compiles(optimizer, w) == jit_compile


NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = ["0.5", None, True, [0.5], NAN, INF, -0.1]
NOT_FLAGS = ["True", "false", None, 1, 0.0, [True]]
NOT_LISTS = ["bias", b"bias", 3, [3], ["("], {"bias": 1}]
BAD = [
    (argument, value)
    for argument, values in {
        "learning_rate": ["0.1", None, True, [0.1], NAN, INF, -0.1, {}],
        "beta_1": [*NOT_NUMBERS, 1.0, 1, 1.5],
        "beta_2": [*NOT_NUMBERS, 1.0, 1, 1.5],
        "momentum": [*NOT_NUMBERS, 1.0, 1, 1.5],
        "epsilon": NOT_NUMBERS,
        "weight_decay": NOT_NUMBERS,
        "trust_coefficient": [*NOT_NUMBERS, 0.0],
        "exclude_from_weight_decay": NOT_LISTS,
        "exclude_from_layer_adaptation": NOT_LISTS,
        "bias_correction": NOT_FLAGS,
        "nesterov": ["none", "First", 1, "third", []],
        "variant": ["Paper", None, "you2020", 1],
        "trust_clip": [(2, 1), (-1, 1), (1,), 3.0, "01", (0, NAN), (0, True)],
        "norm": ["L2", 2, None, "l3", float("inf")],
        "name": [None, "", "a b", "/a", "é", 3],
        "clipnorm": ["1", True, NAN, INF, -1.0, 0.0],
        "clipvalue": ["1", True, NAN, INF, -1.0, 0],
        "global_clipnorm": ["1", True, NAN, INF, -1.0, 0.0],
        "use_ema": NOT_FLAGS,
        "ema_momentum": ["0.9", None, True, NAN, 1.01, -0.01],
        "ema_overwrite_frequency": ["1", True, 0, -1, 1.5, NAN],
        "loss_scale_factor": ["1", True, NAN, INF, -1.0, 0.0],
        "gradient_accumulation_steps": ["2", True, 0, 1, -1, 2.5, NAN],
        "jit_compile": [*NOT_FLAGS, "auto"],
        "mesh": ["cpu", 1],
    }.items()
    for value in values
]


@pytest.mark.parametrize(
    ("host_name", "algorithm", "argument", "value"),
    [
        (host_name, algorithm, argument, value)
        for host_name, host in HOSTS.items()
        for algorithm in ALGORITHMS
        for argument, value in BAD
        if argument in names_of(host, algorithm)
    ],
)
def test_bad_value_names_argument_and_value(
    host_name, algorithm, argument, value
):
    with pytest.raises(ValueError, match=f"`{argument}`") as error:
        getattr(HOSTS[host_name], algorithm)(**{argument: value})
    # Of a list of exclusions it is the entry that is bad.
    entry = value[0] if value in ([3], ["("]) else value
    assert repr(entry) in str(error.value)


@pytest.mark.parametrize("nesterov", ["first", None])
def test_nesterov_of_lars_is_a_boolean(host, nesterov):
    with pytest.raises(ValueError, match="`nesterov`"):
        host.LARS(nesterov=nesterov)
    with pytest.raises(ValueError, match="`nesterov`"):
        host.LAMB(nesterov=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_at_the_edge_are_good(host, algorithm):
    cls = getattr(host, algorithm)
    for arguments in [
        {"learning_rate": 0},
        {"weight_decay": 0},
        {"ema_momentum": 0},
        {"ema_momentum": 1, "use_ema": True},
        {"trust_clip": (0, INF)},
        {"trust_clip": (1, 1)},
        {"exclude_from_weight_decay": ()},
        {"clipnorm": None, "global_clipnorm": 1},
    ]:
        cls(**arguments)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scalars_of_numpy_and_tensorflow(host, algorithm):
    cls = getattr(host, algorithm)
    optimizer = cls(
        learning_rate=np.float32(0.5),
        weight_decay=np.float64(0.25),
        trust_clip=[np.float32(0.5), np.int64(2)],
        clipnorm=np.int32(2),
        use_ema=np.bool_(True),
        ema_momentum=np.float16(0.5),
        ema_overwrite_frequency=np.int64(3),
    )
    config = optimizer.get_config()
    assert config["trust_clip"] == [0.5, 2.0]
    for name, value in {
        "learning_rate": 0.5,
        "weight_decay": 0.25,
        "clipnorm": 2.0,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 3,
    }.items():
        assert config[name] == value
        assert type(config[name]) is type(value)
    for rate in (tf.constant(0.5), np.array(0.5), 1):
        assert float(tf.convert_to_tensor(cls(rate).learning_rate)) == rate


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "pair",
    [
        {"clipnorm": 1.0, "clipvalue": 0.5},
        {"clipnorm": 1.0, "global_clipnorm": 0.5},
        {"clipvalue": 1.0, "global_clipnorm": 0.5},
    ],
    ids=str,
)
def test_two_clips_contradict_each_other(host, algorithm, pair):
    # tf_keras takes `clipnorm` and quietly drops `clipvalue`.
    cls = getattr(host, algorithm)
    words = ".*".join(f"{k}={v}" for k, v in pair.items())
    with pytest.raises(ValueError, match=f"Only one of.*{words}"):
        cls(**pair)
    (first, a), (second, b) = pair.items()
    optimizer = cls(**{first: a})
    with pytest.raises(ValueError, match="Only one of"):
        setattr(optimizer, second, b)
    setattr(optimizer, first, None)
    setattr(optimizer, second, b)


ELSEWHERE = {
    "weight_decay_rate": "`weight_decay`",
    "lr": "`learning_rate`",
    "decay": "a schedule",
    "max_grad_norm": "`global_clipnorm`",
    "weight_deca": "`weight_decay`",
    "exclude_from_weight_decays": "`exclude_from_weight_decay`",
}
OF_ALGORITHM = {
    "LAMB": {
        "betas": "`beta_1` and `beta_2`",
        "beta1": "`beta_1`",
        "beta2": "`beta_2`",
        "eps": "`epsilon`",
        "momentum": "`beta_1`",
    },
    "LARS": {
        "eeta": "`trust_coefficient`",
        "classic_momentum": "`variant`",
        "beta_1": "`momentum`",
        "use_nesterov": "`nesterov`",
    },
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_unknown_arguments_are_named_with_what_to_use(host, algorithm):
    names = {**ELSEWHERE, **OF_ALGORITHM[algorithm], "quux": ""}
    for name, advice in names.items():
        words = f"has no argument `{name}`.*{advice}.*{name}=0.125"
        with pytest.raises(ValueError, match=words):
            getattr(host, algorithm)(**{name: 0.125})


def test_arguments_of_the_other_keras_are_named(host):
    for name, where in {
        "keras": {"jit_compile": "Keras 3"},
        "tf_keras": {
            "loss_scale_factor": "LossScaleOptimizer",
            "gradient_accumulation_steps": "apply_gradients",
        },
    }[host.name].items():
        with pytest.raises(ValueError, match=f"no argument `{name}`.*{where}"):
            host.LAMB(**{name: 2})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_compiled_steps_hold_cannot_be_set(host, algorithm):
    optimizer = getattr(host, algorithm)(weight_decay=0.1)
    fixed = names_of(host, algorithm) - {
        *("learning_rate", "name", "clipnorm", "clipvalue", "global_clipnorm"),
        *("ema_momentum", "ema_overwrite_frequency", "loss_scale_factor"),
    }
    for name in fixed:
        with pytest.raises(AttributeError, match=f"`{name}` cannot be set"):
            setattr(optimizer, name, 0.5)
    assert optimizer.weight_decay == 0.1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_can_be_set_is_checked(host, algorithm):
    optimizer = getattr(host, algorithm)()
    for name in ("clipnorm", "clipvalue", "ema_momentum", "learning_rate"):
        with pytest.raises(ValueError, match=f"`{name}`.*-1"):
            setattr(optimizer, name, -1.0)
