"""Configs and states on their way through every format, and back."""

import copy
import json
import os
import warnings

import numpy as np
import pytest
import tensorflow as tf

from lamb_tf import keras as on_keras_3
from lamb_tf.schedules import WarmupPolynomialDecay
from tests.lamb_tf import problems
from tests.lamb_tf.conftest import HOSTS

ALGORITHMS = ["LAMB", "LARS"]
SHARED = {
    "learning_rate": 0.5,
    "weight_decay": 0.25,
    "exclude_from_weight_decay": ["bias"],
    "exclude_from_layer_adaptation": [],
    "trust_clip": [0.5, 2.0],
    "norm": "l1",
    "name": "other",
    "clipnorm": 1.0,
    "use_ema": True,
    "ema_momentum": 0.75,
    "ema_overwrite_frequency": 3,
}
OWN = {
    "LAMB": {
        "beta_1": 0.875,
        "beta_2": 0.9375,
        "epsilon": 1e-3,
        "bias_correction": False,
        "nesterov": "first",
    },
    "LARS": {
        "momentum": 0.875,
        "trust_coefficient": 0.5,
        "variant": "you2017",
        "nesterov": True,
    },
    "keras": {"gradient_accumulation_steps": 2, "loss_scale_factor": 4.0},
    "tf_keras": {"jit_compile": False},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_config_round_trips_every_argument(host, algorithm):
    cls = getattr(host, algorithm)
    arguments = {**SHARED, **OWN[algorithm], **OWN[host.name]}
    config = cls(**arguments).get_config()
    assert {k: config[k] for k in arguments} == arguments
    rest = set(config) - set(arguments)
    assert rest <= {"clipvalue", "global_clipnorm", "is_legacy_optimizer"}
    before = copy.deepcopy(config)
    again = cls.from_config(config)
    assert config == before
    assert again.get_config() == config
    assert cls(**json.loads(json.dumps(config))).get_config() == config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("lists", [(None, None), ([], None), (None, [])])
def test_config_keeps_none_and_empty_apart(host, algorithm, lists):
    names = "exclude_from_weight_decay", "exclude_from_layer_adaptation"
    cls = getattr(host, algorithm)
    config = cls(**dict(zip(names, lists, strict=True))).get_config()
    again = cls.from_config(config).get_config()
    assert tuple(again[name] for name in names) == lists


def constant_rate():
    return 0.25


RATES = {
    "ours": lambda: WarmupPolynomialDecay(1.0, 4, 8),
    "keras": lambda: HOSTS["keras"].keras.optimizers.schedules.ExponentialDecay(
        1.0, 2, 0.5
    ),
    "tf_keras": lambda: HOSTS[
        "tf_keras"
    ].keras.optimizers.schedules.ExponentialDecay(1.0, 2, 0.5),
    "function": lambda: constant_rate,
}


@pytest.mark.parametrize("kind", RATES)
def test_from_config_leaves_a_schedules_config_alone(host, kind):
    config = host.LAMB(RATES[kind]()).get_config()
    before = copy.deepcopy(config)
    # The class that holds the function is one of Keras 3.
    scope = HOSTS["keras"].keras.utils.custom_object_scope
    with scope({"constant_rate": constant_rate}):
        again = host.LAMB.from_config(config)
    assert config == before
    assert again.get_config() == config
    rates = []
    for optimizer in (host.LAMB(RATES[kind]()), again):
        w = host.variable([1.0], "w")
        for _ in range(3):
            optimizer.apply_gradients([(tf.ones([1]), w)])
        rates.append(float(tf.convert_to_tensor(optimizer.learning_rate)))
    assert rates[0] == rates[1] != 1.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_serialized_by_its_registered_name(host, algorithm):
    optimizers, cls = host.keras.optimizers, getattr(host, algorithm)
    optimizer = cls(exclude_from_layer_adaptation=[], trust_clip=(0, 1))
    saved = json.loads(json.dumps(optimizers.serialize(optimizer)))
    assert saved["registered_name"] == f"lamb_tf>{algorithm}"
    for loaded in (
        optimizers.deserialize(copy.deepcopy(saved)),
        optimizers.get(copy.deepcopy(saved)),
    ):
        assert type(loaded) is cls
        assert loaded.get_config() == optimizer.get_config()
    assert type(optimizers.get(f"lamb_tf>{algorithm}")) is cls


# --- Variables and an optimizer, by hand. ---

SHAPES = {"kernel": (6, 4), "other": (6, 4), "gamma": (4,)}


class Trainer:
    """Some variables, an optimizer of them and a compiled step."""

    def __init__(self, host, algorithm, dtype="float32", wrap=None, **changes):
        weights, gradients = problems.make(shapes=SHAPES, steps=10)
        self.variables = {
            k: host.variable(w, k, dtype) for k, w in weights.items()
        }
        arguments = {
            "learning_rate": WarmupPolynomialDecay(0.05, 3, 14),
            "weight_decay": 0.1,
            "exclude_from_weight_decay": ["gamma"],
        }
        self.inner = getattr(host, algorithm)(**{**arguments, **changes})
        self.optimizer = self.inner if wrap is None else wrap(self.inner)
        self.checkpoint = tf.train.Checkpoint(
            optimizer=self.optimizer, **self.variables
        )
        self._gradients = [
            {k: tf.cast(g, dtype) for k, g in grads.items()}
            for grads in gradients
        ]
        self._step = tf.function(self._apply)

    def _apply(self, grads):
        self.optimizer.apply_gradients(
            [(grads[k], v) for k, v in self.variables.items()]
        )

    def build(self):
        self.optimizer.build(list(self.variables.values()))

    def train(self, first, last):
        for grads in self._gradients[first:last]:
            self._step(grads)

    def values(self):
        return [
            np.array(tf.cast(tf.convert_to_tensor(v), "float32"))
            for v in [*self.variables.values(), *self.optimizer.variables]
        ]

    def assert_equals(self, other):
        mine, theirs = self.values(), other.values()
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


RESUMED = {
    "lamb": (
        "LAMB",
        {"learning_rate": 0.05, "use_ema": True, "ema_overwrite_frequency": 4},
    ),
    "lamb, bfloat16": ("LAMB", {"dtype": "bfloat16", "use_ema": True}),
    "lamb, float16": ("LAMB", {"dtype": "float16"}),
    "lars": ("LARS", {"nesterov": True}),
    "lars, bfloat16": ("LARS", {"dtype": "bfloat16", "variant": "you2017"}),
    "lars, float16": ("LARS", {"dtype": "float16", "use_ema": True}),
}
ACCUMULATED = {
    "lamb, accumulated": ("LAMB", {"gradient_accumulation_steps": 2}),
    "lars, accumulated, bfloat16": (
        "LARS",
        {"gradient_accumulation_steps": 3, "dtype": "bfloat16"},
    ),
}


@pytest.mark.parametrize(
    ("host_name", "case"),
    [(h, c) for h in HOSTS for c in RESUMED]
    + [("keras", c) for c in ACCUMULATED],
)
def test_resumed_run_equals_the_unbroken_one(tmp_path, host_name, case):
    """At step 10, bit for bit, by a checkpoint and by the state alone."""
    algorithm, arguments = {**RESUMED, **ACCUMULATED}[case]

    def new():
        return Trainer(HOSTS[host_name], algorithm, **arguments)

    unbroken = new()
    unbroken.train(0, 5)
    path = unbroken.checkpoint.save(str(tmp_path / "ckpt"))
    store = {}  # As `.keras` and `.h5` files hold it.
    unbroken.optimizer.save_own_variables(store)
    middle = {k: v.numpy() for k, v in unbroken.variables.items()}
    unbroken.train(5, 10)
    steps = 10 // arguments.get("gradient_accumulation_steps", 1)
    assert int(tf.convert_to_tensor(unbroken.optimizer.iterations)) == steps

    for built in (False, True):
        resumed = new()
        if built:
            resumed.build()
        status = resumed.checkpoint.restore(path)
        if not built:
            resumed.build()
        status.assert_consumed()
        loaded = new()
        for k, value in middle.items():
            loaded.variables[k].assign(value)
        if built:
            loaded.build()
        loaded.optimizer.load_own_variables(store)
        if not built:
            loaded.build()
        loaded.assert_equals(resumed)
    again = resumed.checkpoint.save(str(tmp_path / "again"))
    names = {n for n, _ in tf.train.list_variables(again)}
    assert names == {n for n, _ in tf.train.list_variables(path)}
    resumed.train(5, 10)
    resumed.assert_equals(unbroken)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_restored_inside_the_first_step(host, tmp_path, algorithm):
    """Nobody calls `build()`: the step does, and the state is there."""
    unbroken = Trainer(host, algorithm)
    unbroken.train(0, 5)
    path = unbroken.checkpoint.save(str(tmp_path / "ckpt"))
    unbroken.train(5, 10)
    resumed = Trainer(host, algorithm)
    status = resumed.checkpoint.restore(path)
    resumed.train(5, 10)
    status.assert_consumed()
    resumed.assert_equals(unbroken)


def loss_scaled(host):
    if host.name == "keras":
        return on_keras_3.LossScaleOptimizer
    return host.keras.mixed_precision.LossScaleOptimizer


@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
def test_resumed_run_under_a_loss_scale(host, tmp_path, built):
    def new():
        return Trainer(host, "LAMB", "float16", wrap=loss_scaled(host))

    unbroken = new()
    unbroken.train(0, 5)
    path = unbroken.checkpoint.save(str(tmp_path / "ckpt"))
    unbroken.train(5, 10)
    resumed = new()
    if built:
        resumed.build()
    status = resumed.checkpoint.restore(path)
    resumed.train(5, 10)
    status.assert_consumed()
    assert int(tf.convert_to_tensor(resumed.optimizer.iterations)) == 10
    resumed.assert_equals(unbroken)


def test_weights_of_an_optimizer(host):
    one, other = (Trainer(host, "LAMB") for _ in range(2))
    one.train(0, 5)
    for k, variable in one.variables.items():
        other.variables[k].assign(variable.numpy())
    other.build()
    weights = [v.numpy() for v in one.optimizer.variables]
    with pytest.raises(ValueError, match="variables"):
        other.optimizer.set_weights(weights[:-1])
    other.optimizer.set_weights(weights)
    one.train(5, 10)
    other.train(5, 10)
    other.assert_equals(one)


# --- State that does not fit. ---

OTHERS = {
    "other algorithm": ("LARS", {}),
    "averages": ("LAMB", {"use_ema": True}),
    "other dtype": ("LAMB", {"dtype": "bfloat16"}),
}


@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
@pytest.mark.parametrize("case", OTHERS)
def test_state_of_another_optimizer_is_an_error(host, tmp_path, case, built):
    """Neither TensorFlow nor Keras says anything, or they only warn."""
    saved = Trainer(host, "LAMB")
    saved.build()
    path = saved.checkpoint.save(str(tmp_path / "ckpt"))
    store = {}
    saved.optimizer.save_own_variables(store)
    algorithm, arguments = OTHERS[case]
    number = len(saved.optimizer.variables)
    words = f"saved optimizer has {number} variables, this one"

    def check(load):
        other = Trainer(host, algorithm, **arguments)
        if built:
            other.build()
        with pytest.raises(ValueError, match=words):
            load(other)
            other.build()

    check(lambda other: other.optimizer.load_own_variables(store))
    check(
        lambda other: tf.train.Checkpoint(optimizer=other.optimizer).restore(
            path
        )
    )


@pytest.mark.parametrize("built", [False, True], ids=["unbuilt", "built"])
def test_state_of_other_shapes_is_an_error(host, tmp_path, built):
    def new(*shapes):
        variables = [host.variable(tf.ones(s), f"w{s[0]}") for s in shapes]
        optimizer = host.LAMB(0.1)
        if built:
            optimizer.build(variables)
        return variables, optimizer

    variables, saved = new((3, 2), (4,))
    saved.apply_gradients([(tf.ones(v.shape), v) for v in variables])
    path = tf.train.Checkpoint(optimizer=saved).save(str(tmp_path / "ckpt"))
    store = {}
    saved.save_own_variables(store)
    words = r"has shape \(3, 2\), here it has \(4,\)"

    def check(load):
        variables, other = new((4,), (3, 2))
        before = [v.numpy() for v in other.variables]
        with pytest.raises(ValueError, match=words):
            load(other)
            other.build(variables)
        if built:
            for a, b in zip(before, other.variables, strict=True):
                np.testing.assert_array_equal(a, b.numpy())

    check(lambda other: other.load_own_variables(store))
    if not built:  # Else TensorFlow itself objects, in words of its own.
        check(lambda o: tf.train.Checkpoint(optimizer=o).restore(path))


def test_a_peer_starts_anew_without_a_word(host, tmp_path):
    """The control: what `layout.py` is for."""
    adam = host.keras.optimizers.Adam

    def new(*shapes):
        variables = [host.variable(tf.ones(s), f"w{s[0]}") for s in shapes]
        return variables, adam(0.1)

    variables, saved = new((3, 2), (4,))
    saved.apply_gradients([(tf.ones(v.shape), v) for v in variables])
    path = tf.train.Checkpoint(optimizer=saved).save(str(tmp_path / "ckpt"))
    variables, other = new((4,), (3, 2))
    tf.train.Checkpoint(optimizer=other).restore(path)
    other.build(variables)
    assert int(tf.convert_to_tensor(other.iterations)) == 1
    assert not any(np.any(v.numpy()) for v in list(other.variables)[2:])


# --- Models and their files. ---

X = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
Y = X @ np.arange(6, dtype=np.float32)[:, None]


def model_of(host, algorithm="LAMB", dtype=None, **arguments):
    host.keras.utils.set_random_seed(0)
    layers = host.keras.layers
    model = host.keras.Sequential(
        [layers.Dense(4, dtype=dtype), layers.Dense(1, dtype=dtype)]
    )
    model.build((None, 6))
    optimizer = getattr(host, algorithm)(
        **{
            "learning_rate": WarmupPolynomialDecay(0.02, 2, 60),
            "weight_decay": 0.01,
            "exclude_from_weight_decay": ["bias"],
            **arguments,
        }
    )
    loss = host.keras.losses.MeanSquaredError()
    model.compile(optimizer=optimizer, loss=loss)
    return model


def fit(model, epochs):
    model.fit(X, Y, 8, epochs, shuffle=False, verbose=0)


def assert_equal_models(one, other):
    assert int(tf.convert_to_tensor(one.optimizer.iterations)) == int(
        tf.convert_to_tensor(other.optimizer.iterations)
    )
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(np.float32(a), np.float32(b))


FILES = [
    ("keras", "keras", "LAMB", {}),
    ("keras", "keras", "LARS", {"dtype": "bfloat16"}),
    ("keras", "keras", "LAMB", {"dtype": "float16", "use_ema": True}),
    ("keras", "h5", "LAMB", {}),
    ("tf_keras", "keras", "LAMB", {}),
    ("tf_keras", "keras", "LARS", {"dtype": "float16"}),
    ("tf_keras", "h5", "LAMB", {"use_ema": True}),
    ("tf_keras", "tf", "LAMB", {}),
]


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize(("host_name", "suffix", "algorithm", "options"), FILES)
def test_a_saved_model_resumes(tmp_path, host_name, suffix, algorithm, options):
    host = HOSTS[host_name]
    whole, part = (model_of(host, algorithm, **options) for _ in range(2))
    fit(whole, 1)  # Which ends with the averages in force.
    fit(whole, 1)
    fit(part, 1)
    path = str(tmp_path / f"model.{suffix}")
    part.save(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = host.keras.models.load_model(path)
    assert not [w for w in caught if "Skipping" in str(w.message)]
    assert type(loaded.optimizer) is getattr(host, algorithm)
    assert loaded.optimizer.get_config() == part.optimizer.get_config()
    if suffix == "tf":
        # The SavedModel holds the state, but tf_keras restores that of no
        # optimizer; it can be had by hand.
        assert int(loaded.optimizer.iterations) == 0
        checkpoint = tf.train.Checkpoint(root=loaded)
        checkpoint.restore(os.path.join(path, "variables", "variables"))
    assert_equal_models(loaded, part)
    fit(loaded, 1)
    assert_equal_models(loaded, whole)


# Keras 3 has no checkpoints of its own: there a suffix is a must.
@pytest.mark.parametrize(
    ("host", "suffix"),
    [("keras", ".weights.h5"), ("tf_keras", ".weights.h5"), ("tf_keras", "")],
    indirect=["host"],
)
def test_a_file_of_weights_resumes(host, tmp_path, suffix):
    whole = model_of(host)
    fit(whole, 1)
    path = str(tmp_path / f"some{suffix}")
    whole.save_weights(path)
    fit(whole, 1)
    loaded = model_of(host)
    loaded.load_weights(path)
    fit(loaded, 1)
    assert_equal_models(loaded, whole)
    other = model_of(host, "LARS")
    with pytest.raises(ValueError, match="saved optimizer has"):
        other.load_weights(path)
        other.optimizer.build(other.trainable_variables)


def test_a_model_saved_before_its_first_step(host, tmp_path):
    path = str(tmp_path / "model.keras")
    model_of(host, learning_rate=0.02).save(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*Skipping")
        loaded = host.keras.models.load_model(path)
    fit(loaded, 1)
    assert int(tf.convert_to_tensor(loaded.optimizer.iterations)) == 2


def test_an_exported_model_predicts(tmp_path):
    model = model_of(HOSTS["keras"])
    fit(model, 1)
    model.export(str(tmp_path / "export"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "export"))
    served = loaded.serve(X)
    np.testing.assert_allclose(served, model.predict(X, verbose=0), rtol=1e-5)


def test_a_copy_of_a_keras_optimizer_keeps_its_state():
    host = HOSTS["keras"]
    one = Trainer(host, "LAMB")
    one.train(0, 5)
    other = Trainer(host, "LAMB")
    for k, variable in one.variables.items():
        other.variables[k].assign(variable.numpy())
    other.optimizer = copy.deepcopy(one.optimizer)
    one.train(5, 10)
    other.train(5, 10)
    other.assert_equals(one)
