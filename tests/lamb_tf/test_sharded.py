"""The parts of a sharded variable are one layer."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from tests.lamb_tf import processes, replicated
from tests.lamb_tf.conftest import HOSTS

TABLE = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
ROWS = (2, 1, 4)
STEPS = [
    np.random.default_rng(step).normal(size=(7, 3)).astype(np.float32)
    for step in range(1, 4)
]
ROUNDINGS = {"rtol": 5e-7, "atol": 5e-7}


def parts_of(value, dtype):
    """Returns a `ShardedVariable` as a partitioner of a strategy makes it."""
    pieces = tf.split(tf.cast(value, dtype), ROWS)
    return tf.__internal__.distribute.ShardedVariable(
        [
            tf.Variable(piece, name=f"net/table/part_{i}")
            for i, piece in enumerate(pieces)
        ]
    )


class Run:
    """A table, whole or in parts, and a bias."""

    def __init__(
        self,
        host,
        sharded,
        name="LAMB",
        dtype="float32",
        wrap=tf.function,
        **arguments,
    ):
        self.bias = host.variable([1.0, 2.0], "net_bias")
        if sharded:
            self.table = parts_of(TABLE, dtype)
            self.parts = list(self.table.variables)
        else:
            self.table = tf.Variable(tf.cast(TABLE, dtype), name="net/table")
            self.parts = [self.table]
        self.optimizer = getattr(host, name)(
            0.1,
            weight_decay=0.1,
            exclude_from_weight_decay=arguments.pop("exclude", ["bias"]),
            **arguments,
        )
        self.optimizer.build([*self.parts, self.bias])
        self._step = wrap(self._apply)

    def _apply(self, grads):
        pairs = zip(grads, self.parts, strict=True)
        self.optimizer.apply_gradients([*pairs, (tf.ones([2]), self.bias)])

    def step(self, grad):
        dtype = self.parts[0].dtype
        sizes = [part.shape[0] for part in self.parts]
        self._step(tf.split(tf.cast(grad, dtype), sizes))

    def train(self):
        for grad in STEPS:
            self.step(grad)
        return self.value(self.parts)

    @staticmethod
    def value(parts):
        return tf.cast(tf.concat(list(parts), 0), tf.float32).numpy()


@pytest.mark.parametrize(
    "arguments",
    [
        {"wrap": replicated.wrap_eager},
        {"name": "LARS"},
        {"norm": "linf", "global_clipnorm": 1.0},
        {"dtype": "bfloat16", "use_ema": True, "ema_overwrite_frequency": 2},
    ],
    ids=["eager", "LARS", "linf clipped", "bfloat16 averaged"],
)
def test_parts_move_as_the_whole_does(host, arguments):
    whole, parts = Run(host, False, **arguments), Run(host, True, **arguments)
    np.testing.assert_allclose(parts.train(), whole.train(), **ROUNDINGS)
    # One layer to whoever looks, too.
    assert parts.optimizer.describe() == whole.optimizer.describe()
    one, other = whole.optimizer.trust_ratios, parts.optimizer.trust_ratios
    assert list(one) == list(other) == ["net/table", "net_bias"]
    for path in one:
        np.testing.assert_allclose(other[path], one[path], rtol=1e-6)
    np.testing.assert_allclose(
        parts.optimizer.trust_table(), whole.optimizer.trust_table(), rtol=1e-6
    )


def test_a_ratio_of_each_part_would_differ(host):
    """What the other tests of this file would see."""
    whole, parts = Run(host, False), Run(host, False)
    parts.parts = [tf.Variable(p) for p in tf.split(TABLE, ROWS)]
    parts.optimizer = host.LAMB(0.1, weight_decay=0.1)
    parts.optimizer.build([*parts.parts, parts.bias])
    assert not np.allclose(parts.train(), whole.train(), rtol=1e-2)


@pytest.mark.parametrize("entry", ["table$", "whole", "part"])
def test_an_exclusion_reaches_all_parts(host, entry):
    run = Run(host, True)
    entries = {"whole": run.table, "part": run.parts[1], "table$": "table$"}
    optimizer = host.LAMB(
        0.1, weight_decay=0.1, exclude_from_weight_decay=[entries[entry]]
    )
    optimizer.build([*run.parts, run.bias])
    rows = [line.split() for line in optimizer.describe().splitlines()[1:]]
    assert rows == [
        ["net/table", "(7,", "3)", "no", "no"],
        ["net_bias", "(2,)", "yes", "yes"],
    ]
    if entry != "table$":
        config = optimizer.get_config()["exclude_from_weight_decay"]
        assert config == [r"^net/table$"]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_part_without_a_gradient_has_one_of_zeros(host):
    whole, parts = Run(host, False), Run(host, True)
    grad = STEPS[0].copy()
    grad[2:3] = 0.0
    whole.step(grad)
    first, _, last = tf.split(grad, ROWS)
    parts.optimizer.apply_gradients(
        list(zip((first, None, last), parts.parts, strict=True))
        + [(tf.ones([2]), parts.bias)]
    )
    np.testing.assert_allclose(
        parts.value(parts.parts), whole.value(whole.parts), **ROUNDINGS
    )


def test_a_sparse_gradient_of_a_part(host):
    dense, sparse = Run(host, True), Run(host, True)
    grad = np.zeros((7, 3), np.float32)
    grad[4] = 3.0
    dense.step(grad)
    pieces = list(tf.split(np.zeros_like(grad), ROWS))
    pieces[2] = tf.IndexedSlices(
        tf.constant([[1.0] * 3, [2.0] * 3]), tf.constant([1, 1])
    )
    sparse._apply(pieces)
    np.testing.assert_array_equal(
        sparse.value(sparse.parts), dense.value(dense.parts)
    )


def test_a_checkpoint_of_parts_resumes(tmp_path):
    host = HOSTS["tf_keras"]

    def checkpoint(run):
        return tf.train.Checkpoint(
            optimizer=run.optimizer, table=run.table, bias=run.bias
        )

    first = Run(host, True)
    first.step(STEPS[0])
    path = checkpoint(first).save(str(tmp_path / "x"))
    # It knows the whole: any partition resumes, and none.
    resumed = [Run(host, True), Run(host, False)]
    first.step(STEPS[1])
    for run in resumed:
        checkpoint(run).restore(path).assert_consumed()
        run.step(STEPS[1])
        np.testing.assert_allclose(
            run.value(run.parts), first.value(first.parts), **ROUNDINGS
        )


def test_the_state_of_parts_resumes():
    # Keras 3 knows no wholes, and a checkpoint none of its parts.
    first, resumed = (Run(HOSTS["keras"], True) for _ in range(2))
    first.step(STEPS[0])
    store = {}
    first.optimizer.save_own_variables(store)
    resumed.optimizer.load_own_variables(store)
    for part, other in zip(resumed.parts, first.parts, strict=True):
        part.assign(other)
    for run in (first, resumed):
        run.step(STEPS[1])
    np.testing.assert_array_equal(
        resumed.value(resumed.parts), first.value(first.parts)
    )


def test_parts_on_two_parameter_servers(tmp_path):
    """`tf_keras` only: Keras 3 has no variables in parts."""
    path = tmp_path / "results.npz"
    processes.run_together(
        "tests.lamb_tf.parameter_server", [[str(path)]], [{}]
    )
    results = np.load(path)
    cases = {key.split("/")[0] for key in results}
    assert cases == {"LAMB", "LARS"}
    for case in cases:
        np.testing.assert_allclose(
            results[f"{case}/sharded"], results[f"{case}/one"], **ROUNDINGS
        )
        rows = str(results[f"{case}/table"]).splitlines()[1:]
        assert [row.split()[0] for row in rows] == ["kernel", "bias"]
        ratio, bias = results[f"{case}/ratios"]
        assert ratio != 1.0 == bias


@pytest.fixture(scope="module")
def mesh():
    return dtensor.create_mesh([("rows", 2)], devices=["CPU:0", "CPU:1"])


@pytest.mark.parametrize("wrap", [replicated.wrap_eager, tf.function])
@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "LAMB", "use_ema": True},
        {"name": "LARS"},
        {"name": "LAMB", "dtype": "bfloat16", "global_clipnorm": 1.0},
    ],
    ids=str,
)
def test_a_dtensor_in_two_shards(mesh, arguments, wrap):
    """A `mesh` is an argument of tf_keras."""
    host = HOSTS["tf_keras"]
    arguments = dict(arguments)
    name = arguments.pop("name")
    dtype = arguments.pop("dtype", "float32")
    start = tf.cast(TABLE[:6], dtype)
    whole = tf.Variable(start, name="w")
    plain = getattr(host, name)(0.1, weight_decay=0.1, **arguments)
    everywhere = dtensor.Layout.replicated(mesh, 2)
    by_rows = dtensor.Layout(["rows", dtensor.UNSHARDED], mesh)
    sharded = dtensor.DVariable(
        dtensor.relayout(dtensor.copy_to_mesh(start, everywhere), by_rows),
        name="w",
    )
    optimizer = getattr(host, name)(
        0.1, weight_decay=0.1, mesh=mesh, **arguments
    )
    optimizer.build([sharded])

    @wrap
    def step(grad):
        optimizer.apply_gradients([(dtensor.relayout(grad, by_rows), sharded)])

    for grad in STEPS[:2]:
        grad = tf.cast(grad[:6], dtype)
        plain.apply_gradients([(grad, whole)])
        step(dtensor.copy_to_mesh(grad, everywhere))
    value = dtensor.relayout(sharded.read_value(), everywhere)
    np.testing.assert_allclose(
        tf.cast(dtensor.unpack(value)[0], tf.float32),
        tf.cast(whole, tf.float32),
        **ROUNDINGS,
    )
    assert dtensor.fetch_layout(sharded.read_value()) == by_rows
    slots = dict.fromkeys(v.dtype for v in optimizer._m)
    assert list(slots) == [tf.float32]
