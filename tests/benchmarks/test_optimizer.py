"""The benchmark's command, its measurements and its verdicts."""

import json
import sys

import pytest

from benchmarks import machine, optimizer, report, shapes, worker


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(
        shapes.MODELS, "bert_base", lambda: [(64, 32), (32,), (8, 4, 4)]
    )
    monkeypatch.setattr(machine.Copy, "SIZE", 2**20)


def measured(contender, mode, dtype):
    return worker.measure(contender, mode, "bert_base", dtype, 3, 1.0)


@pytest.mark.parametrize(
    "contender, mode", [("ours, Keras 3", "eager"), ("ours, tf_keras", "xla")]
)
def test_ours_is_traced_once_and_trains_in_bfloat16(tiny, contender, mode):
    row = measured(contender, mode, "bfloat16")
    assert row["state"] == "trains"
    assert row["traces"] > 0 and row["retraces"] == 0
    assert row["repeats"] == 3
    assert row["fastest"] <= row["seconds"]


@pytest.mark.parametrize(
    "contender, state",
    [("Keras Lamb", "never moves"), ("tf-models LAMB", "NaN")],
)
def test_a_peer_that_cannot_train_is_shown_so(tiny, contender, state):
    assert measured(contender, "graph", "bfloat16")["state"] == state
    assert measured(contender, "graph", "float32")["state"] == "trains"


def row(optimizer_name, mode, times_bound, state="trains"):
    return {
        "model": "m",
        "dtype": "float32",
        "optimizer": optimizer_name,
        "mode": mode,
        "times_bound": times_bound,
        "state": state,
        "retraces": 0,
    }


def test_targets_are_judged_by_our_slowest_mode_and_their_fastest():
    rows = [
        row("ours, Keras 3", "eager", 1.1),
        row("ours, Keras 3", "graph", 1.0),
        row("Keras Lamb", "graph", 2.0),
        row("tf-models LAMB", "graph", 1.9),
        row("optax.lamb", "jit", 1.2),
        # What does not train is no rival.
        row("timm Lamb", "foreach", 0.1, "NaN"),
        {"model": "m", "dtype": "float32", "mode": "xla", "error": "no"}
        | {"optimizer": "Keras Lamb"},
    ]
    passed = [verdict["passed"] for verdict in report.summary(rows)]
    assert passed == [True, True, False, True, True]
    slower = rows + [row("ours, tf_keras", "xla", 1.25)]
    passed = [verdict["passed"] for verdict in report.summary(slower)]
    assert passed == [False, True, False, False, True]


def test_a_target_without_its_rows_is_left_open():
    verdicts = report.summary([row("optax.lamb", "jit", 1.2)])
    assert [verdict["passed"] for verdict in verdicts] == [None, None, None]
    assert report.summary_lines(verdicts).count("not measured") == 2


@pytest.mark.parametrize("flag", ["--models", "--modes", "--dtypes"])
def test_an_unknown_name_is_refused_with_the_known_ones(flag, capsys):
    with pytest.raises(SystemExit):
        optimizer.parse([flag, "none"])
    assert "none: choose from" in capsys.readouterr().err


def test_a_peer_that_is_not_there_gets_a_row(tmp_path, monkeypatch, capsys):
    # Hides the package from the worker, where it is installed.
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError('no jax')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    target = tmp_path / "report.json"
    monkeypatch.setattr(
        sys,
        "argv",
        ["optimizer", "--only=optax", "--models=resnet50"]
        + ["--dtypes=float32", f"--json={target}"],
    )
    optimizer.main()
    assert "not installed: pip install '.[bench]'" in capsys.readouterr().out
    (found,) = json.loads(target.read_text())["rows"]
    assert "not installed" in found["error"]
