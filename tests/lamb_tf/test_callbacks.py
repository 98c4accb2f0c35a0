import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

import lamb_tf.keras
from lamb_tf.callbacks import TrustRatioLogger

BATCHES = 12
NOT_ADAPTED = ["bias"]


def curves(folder):
    """Returns {tag: [(step, value)]} of all event files of a folder."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(e.step, e.value) for e in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def steps(folder, tag):
    return [step for step, _ in curves(folder)[tag]]


def event_files(folder):
    return list(pathlib.Path(folder).glob("events.out.tfevents.*"))


def data(batches=BATCHES):
    x = np.random.default_rng(0).normal(size=(8 * batches, 4))
    return x.astype("float32"), x[:, :1].astype("float32")


def make(host, optimizer=None, **compile_options):
    model = host.keras.Sequential(
        [
            host.keras.layers.Input([4]),
            host.keras.layers.Dense(3, name="first"),
            host.keras.layers.Dense(1, name="second"),
        ],
        name="model",
    )
    if optimizer is None:
        optimizer = host.LAMB(0.01, exclude_from_layer_adaptation=NOT_ADAPTED)
    model.compile(optimizer, "mse", **compile_options)
    return model


def fit(model, folder, every=5, epochs=1, callbacks=(), batches=BATCHES):
    x, y = data(batches)
    return model.fit(
        x,
        y,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[TrustRatioLogger(folder, every), *callbacks],
    )


def last(model):
    """Returns what the logger should have written last, by tag."""
    expected = {}
    for path, trust in model.optimizer.trusts.items():
        if "bias" not in path:
            for tag, value in zip(
                ("trust_ratio", "w_norm", "u_norm"), trust, strict=True
            ):
                expected[f"{tag}/{path}"] = float(value)
    return expected


def test_fit(host, tmp_path):
    model = make(host)
    fit(model, tmp_path, epochs=2)
    found = curves(tmp_path)
    expected = last(model)
    assert len(expected) == 6  # Two kernels; a bias has no curve.
    assert {tag: points[-1][1] for tag, points in found.items()} == expected
    for points in found.values():
        # The first, every fifth, and the last update.
        assert [step for step, _ in points] == [1, 5, 10, 15, 20, 24]
        assert np.isfinite([value for _, value in points]).all()
    assert len(event_files(tmp_path)) == 1


def test_fit_whose_steps_are_compiled_together(host, tmp_path):
    model = make(host, steps_per_execution=4)
    fit(model, tmp_path)
    assert steps(tmp_path, next(iter(last(model)))) == [4, 8, 12]


def test_values_are_those_of_the_update(host, tmp_path, run):
    rate, start = 0.125, np.array([[3.0, 0.0], [0.0, 4.0]], np.float32)
    optimizer = host.LAMB(rate, weight_decay=0.1)
    w = host.variable(start, "w")
    step = run(
        lambda: optimizer.apply_gradients(
            [(tf.constant([[1.0, 2], [3, 4]]), w)]
        )
    )
    norms, moves = [], []
    with TrustRatioLogger(tmp_path, 1) as logger:
        for _ in range(3):
            before = np.array(tf.convert_to_tensor(w))
            step()
            after = np.array(tf.convert_to_tensor(w))
            norms.append(np.linalg.norm(before))
            moves.append(np.linalg.norm(after - before))
            assert logger.log(optimizer)
    found = {
        tag.split("/")[0]: np.array([value for _, value in points])
        for tag, points in curves(tmp_path).items()
    }
    assert norms[0] == 5.0
    np.testing.assert_allclose(found["w_norm"], norms, rtol=1e-6)
    np.testing.assert_allclose(
        found["trust_ratio"], found["w_norm"] / found["u_norm"], rtol=1e-6
    )
    # |w_new - w| = rate * ratio * |u|, up to the rounding of w.
    step_size = rate * found["trust_ratio"] * found["u_norm"]
    np.testing.assert_allclose(moves, step_size, rtol=1e-5)


@pytest.mark.parametrize("counted", [True, False])
def test_custom_loop(host, tmp_path, counted):
    optimizer = host.LARS(0.1)
    w = host.variable([3.0, 4.0], "w")
    logger, logged = TrustRatioLogger(tmp_path, every_n_steps=3), []
    for step in range(1, 9):
        optimizer.apply_gradients([(tf.ones(2), w)])
        if logger.log(optimizer, step if counted else None):
            logged.append(step)
    logger.close()
    logger.close()
    assert logged == [1, 3, 6]
    assert steps(tmp_path, "w_norm/w") == [1, 3, 6]
    # After a step back, such as the restart from an older checkpoint.
    assert logger.log(optimizer, 2)
    logger.close()
    assert len(event_files(tmp_path)) == 2


def test_nothing_is_read_between_two_points(host, tmp_path):
    class Watched(host.LAMB):
        reads = 0
        looks = 0

        def trust_table(self):
            type(self).reads += 1
            return super().trust_table()

    class WatchedLogger(TrustRatioLogger):
        def _updates_done(self):
            Watched.looks += 1
            return super()._updates_done()

    model = make(host, Watched(0.01))
    x, y = data(100)
    model.fit(x, y, 8, verbose=0, callbacks=[WatchedLogger(tmp_path, 20)])
    assert steps(tmp_path, "w_norm/" + next(iter(model.optimizer.trusts))) == [
        1,
        *range(20, 101, 20),
    ]
    assert Watched.reads == 6
    # Once at each point but the last, and at the begins and ends.
    assert Watched.looks <= 10

    optimizer = Watched(0.01)
    w = host.variable([1.0], "w")
    optimizer.apply_gradients([(tf.ones(1), w)])
    Watched.reads = 0
    with TrustRatioLogger(tmp_path / "loop", 20) as logger:
        for step in range(1, 101):
            logger.log(optimizer, step)
    assert Watched.reads == 6


def test_no_curve_of_what_has_no_gradient_so_far(host, tmp_path):
    optimizer = host.LAMB(0.1)
    used, unused = host.variable([1.0], "used"), host.variable([1.0], "unused")
    optimizer.build([used, unused])
    with TrustRatioLogger(tmp_path, 1) as logger:
        logger.log(optimizer)
        assert not event_files(tmp_path)
        optimizer.apply_gradients([(tf.ones(1), used)])
        logger.log(optimizer)
        optimizer.apply_gradients([(tf.ones(1), used), (tf.ones(1), unused)])
        logger.log(optimizer)
    assert steps(tmp_path, "w_norm/used") == [1, 2]
    assert steps(tmp_path, "w_norm/unused") == [2]


def test_a_run_that_diverges_shows(host, tmp_path):
    optimizer = host.LAMB(0.1)
    w = host.variable([1.0], "w")
    with TrustRatioLogger(tmp_path, 1) as logger:
        for gradient in (1.0, np.nan, np.nan):
            optimizer.apply_gradients([(tf.constant([gradient]), w)])
            logger.log(optimizer)
    norms = [value for _, value in curves(tmp_path)["w_norm/w"]]
    np.testing.assert_array_equal(np.isnan(norms), [False, False, True])


def test_nothing_adapted_writes_nothing(host, tmp_path):
    model = make(host, host.LAMB(0.01, exclude_from_layer_adaptation=[""]))
    fit(model, tmp_path)
    assert not event_files(tmp_path)


def test_variables_of_one_name_have_curves_of_their_own(host, tmp_path):
    optimizer = host.LAMB(0.1)
    first, second = host.variable([3.0], "w"), host.variable([4.0], "w")
    optimizer.apply_gradients([(tf.ones(1), first), (tf.ones(1), second)])
    with TrustRatioLogger(tmp_path) as logger:
        logger.log(optimizer)
    found = curves(tmp_path)
    assert found["w_norm/w"] == [(1, 3.0)]
    assert found["w_norm/w_1"] == [(1, 4.0)]


def test_resumed_run_goes_on_where_it_stopped(host, tmp_path):
    model = make(host)
    fit(model, tmp_path / "logs")
    prefix = host.checkpoint(model=model, optimizer=model.optimizer).save(
        str(tmp_path / "model")
    )
    again = make(host)
    host.checkpoint(model=again, optimizer=again.optimizer).restore(prefix)
    fit(again, tmp_path / "logs")
    # One folder, two files, one curve.
    assert len(event_files(tmp_path / "logs")) == 2
    for tag in last(model):
        assert steps(tmp_path / "logs", tag) == [1, 5, 10, 12, 13, 15, 20, 24]


def loss_scaled(host, inner, **options):
    if host.name == "keras":
        return lamb_tf.keras.LossScaleOptimizer(inner, **options)
    return host.keras.mixed_precision.LossScaleOptimizer(inner, **options)


def test_loss_scaling_counts_the_updates(host, tmp_path):
    model = make(
        host, loss_scaled(host, host.LAMB(0.01), initial_scale=2.0**126)
    )
    x, y = data(30)
    logger = TrustRatioLogger(tmp_path, 4)
    # The first batches overflow: the scale is halved, the step skipped.
    model.fit(x, 100 * y, 8, verbose=0, callbacks=[logger])
    inner = model.optimizer.inner_optimizer
    done = int(inner.iterations)
    assert 8 < done < 30
    found = steps(tmp_path, "w_norm/" + next(iter(inner.trusts)))
    assert found[-1] == done
    assert 8 in found
    assert set(found) <= {1, *range(4, done + 1, 4), done}


def test_accumulation_counts_updates(tmp_path):
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(
        lamb_tf.keras.LAMB(0.01, gradient_accumulation_steps=3), "mse"
    )
    fit(model, tmp_path, every=2, batches=21)
    tag = "w_norm/" + next(iter(model.optimizer.trusts))
    assert steps(tmp_path, tag) == [1, 2, 4, 6, 7]


def test_on_replicas(host, tmp_path, replicas):
    with replicas.scope():
        model = make(host)
    fit(model, tmp_path)
    found = curves(tmp_path)
    assert {tag: points[-1][1] for tag, points in found.items()} == last(model)
    assert steps(tmp_path, next(iter(found))) == [1, 5, 10, 12]


WORKER = """
import sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import lamb_tf.tf_keras
from lamb_tf.callbacks import TrustRatioLogger
with strategy.scope():
    w = tf.Variable([3.0, 4.0], name="w")
    optimizer = lamb_tf.tf_keras.LAMB(0.1)
    optimizer.build([w])
@tf.function
def step():
    strategy.run(lambda: optimizer.apply_gradients([(tf.ones(2), w)]))
with TrustRatioLogger(sys.argv[1], 2) as logger:
    for i in range(1, 5):
        step()
        logger.log(optimizer, i)
"""


@pytest.mark.slow
def test_of_several_workers_the_chief_writes(tmp_path):
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(f"localhost:{free.getsockname()[1]}")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path / str(index))],
            env={
                **os.environ,
                "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": ports},
                        "task": {"type": "worker", "index": index},
                    }
                ),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors[-3000:]
    assert steps(tmp_path / "0", "trust_ratio/w") == [1, 2, 4]
    assert not (tmp_path / "1").exists()


def test_beside_the_tensorboard_callback(host, tmp_path):
    model = make(host)
    board = host.keras.callbacks.TensorBoard(tmp_path / "board", update_freq=7)
    fit(model, tmp_path / "trust", callbacks=[board])
    assert steps(tmp_path / "trust", next(iter(last(model)))) == [1, 5, 10, 12]


def test_another_optimizer_is_refused_before_the_first_step(host, tmp_path):
    model = make(host, host.keras.optimizers.Adam())
    with pytest.raises(ValueError, match="LAMB or LARS of lamb_tf.*Adam"):
        fit(model, tmp_path)
    assert int(model.optimizer.iterations) == 0
    logger = TrustRatioLogger(tmp_path)
    with pytest.raises(ValueError, match="LossScaleOptimizer"):
        logger.log(loss_scaled(host, host.keras.optimizers.SGD()))


def test_inside_a_function_is_refused(host, tmp_path):
    logger, optimizer = TrustRatioLogger(tmp_path), host.LAMB()
    with pytest.raises(RuntimeError, match="outside tf.function"):
        tf.function(lambda: logger.log(optimizer, 1))()


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "10"])
def test_bad_interval(tmp_path, every):
    with pytest.raises(ValueError, match="`every_n_steps`"):
        TrustRatioLogger(tmp_path, every)
