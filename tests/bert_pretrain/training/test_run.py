"""The real command in a process of its own: whole, killed, resumed, refused."""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain import config as config_lib
from bert_pretrain import pretrain
from bert_pretrain.config import ConfigError

# Long enough for a kill to land inside a phase.
STEPS = (60, 40)


@pytest.fixture
def recipe(recipe):
    for phase, steps in zip(recipe.trainer.phases, STEPS, strict=True):
        phase.train_steps = steps
    recipe.trainer.steps_per_loop = 2
    recipe.trainer.checkpoint_interval = 10
    return recipe


def _start(recipe, model_dir, *flags, **options):
    path = model_dir.parent / "recipe.yaml"
    path.write_text(config_lib.to_yaml(recipe))
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bert_pretrain.pretrain",
            f"--config_file={path}",
            f"--model_dir={model_dir}",
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def _run(recipe, model_dir, *flags, **options):
    process = _start(recipe, model_dir, *flags, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def _lines(model_dir):
    path = model_dir / "metrics.jsonl"
    if not path.exists():
        return []
    return [
        json.loads(line)
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]


def _without_seconds(lines):
    return [{k: v for k, v in x.items() if k != "seconds"} for x in lines]


def _tensors(model_dir):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(model_dir))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "save_counter" not in name and "OBJECT_GRAPH" not in name
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Where the unbroken run of the module's recipe goes."""
    return tmp_path_factory.mktemp("whole") / "model"


@pytest.fixture
def unbroken(recipe, whole):
    """The unbroken run; computed once."""
    if not (whole / "summary.json").exists():
        code, out, err = _run(recipe, whole)
        assert code == 0, err
        (whole.parent / "stdout").write_text(out)
        (whole.parent / "stderr").write_text(err)
    return whole


def test_the_whole_run_leaves_what_programs_read(recipe, unbroken):
    lines = _lines(unbroken)
    assert [line["step"] for line in lines] == list(range(2, 101, 2))
    assert [line["phase"] for line in lines] == ["phase1"] * 30 + [
        "phase2"
    ] * 20
    expected = {
        "step", "phase", "loss", "mlm_loss", "nsp_loss", "learning_rate",
        "grad_norm", "examples", "seconds",
    }  # fmt: skip
    assert expected <= lines[0].keys()
    assert lines[-1]["examples"] == 60 * 16 + 40 * 8
    # Each phase warms up from zero.
    rates = {line["step"]: line["learning_rate"] for line in lines}
    assert rates[2] < rates[4] and rates[60] < rates[62] > rates[100]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)

    summary = json.loads((unbroken / "summary.json").read_text())
    assert summary.keys() >= {
        "unigram_loss", "phases", "seconds", "versions", "command"
    }  # fmt: skip
    for result, phase in zip(
        summary["phases"], recipe.trainer.phases, strict=True
    ):
        assert result["name"] == phase.name
        assert result["seq_length"] == phase.seq_length
        assert result["global_batch_size"] == phase.global_batch_size
        assert result["steps"] == phase.train_steps
        assert 0 < result["mlm_loss"] < 20
        assert 0 <= result["mlm_accuracy"] <= 1
        assert 0 <= result["nsp_accuracy"] <= 1
    assert summary["versions"]["tensorflow"] == tf.__version__
    assert "bert_pretrain.pretrain" in summary["command"]

    out = (unbroken.parent / "stdout").read_text()
    assert "global batch 16 = 16 per replica x 1 replica" in out
    assert "phase2  step 100/100" in out
    assert "train | step" not in out, "orbit's own lines stay away"
    assert "controller.py" not in (unbroken.parent / "stderr").read_text()
    config = config_lib.load(str(unbroken / "params.yaml"))
    assert config == recipe


def test_killed_in_each_phase_and_resumed_it_is_the_same_run(
    recipe, unbroken, tmp_path
):
    model_dir = tmp_path / "model"
    for at, last in ((25, 60), (75, 100)):
        process = _start(recipe, model_dir)
        while not any(line["step"] >= at for line in _lines(model_dir)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        saved = tf.train.latest_checkpoint(model_dir)
        assert at - 15 <= int(saved.rpartition("-")[2]) < last
    # Killed while a line was being written.
    with open(model_dir / "metrics.jsonl", "a") as f:
        f.write('{"step": 1')
    code, out, err = _run(recipe, model_dir)
    assert code == 0, err
    assert "Resuming from step" in out
    assert _without_seconds(_lines(model_dir)) == _without_seconds(
        _lines(unbroken)
    )
    ours, theirs = _tensors(model_dir), _tensors(unbroken)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, name)
    read = [
        json.loads((d / "summary.json").read_text())["phases"]
        for d in (model_dir, unbroken)
    ]
    assert read[0] == read[1]


def test_a_complete_run_says_so_and_trains_nothing(recipe, unbroken):
    before = {p: p.stat().st_mtime_ns for p in unbroken.glob("ckpt-*")}
    summary = unbroken / "summary.json"
    first = summary.read_text()
    summary.unlink()  # Killed after the last evaluation, before the summary.
    code, out, _ = _run(recipe, unbroken)
    assert code == pretrain.EXIT_ALREADY_COMPLETE
    assert "Already complete: 100 steps" in out and "MLM loss" in out
    assert before == {p: p.stat().st_mtime_ns for p in unbroken.glob("ckpt-*")}
    again = json.loads(summary.read_text())
    assert again["phases"] == json.loads(first)["phases"]


def test_another_recipe_is_refused_by_what_differs(recipe, unbroken):
    recipe.trainer.phases[0].learning_rate = 0.5
    recipe.trainer.steps_per_loop = 1  # Free to change.
    code, _, err = _run(recipe, unbroken)
    assert code == pretrain.EXIT_CANNOT_RUN
    assert "trainer.phases[0].learning_rate: 0.02 there, 0.5 now" in err
    assert "steps_per_loop" not in err


@pytest.mark.slow
def test_two_replicas_end_where_one_does(recipe, unbroken, tmp_path):
    recipe.runtime.distribution_strategy = "mirrored"
    recipe.runtime.num_logical_cpus = 2
    code, out, err = _run(recipe, tmp_path / "model")
    assert code == 0, err
    assert "8 per replica x 2 replicas" in out
    one, two = (
        json.loads((d / "heldout.json").read_text())
        for d in (unbroken, tmp_path / "model")
    )
    for phase, results in one.items():
        for name, value in results.items():
            # 100 steps of float32 round-off in another order.
            assert two[phase][name] == pytest.approx(value, rel=2e-2), name


def _limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000,) * 2)


def test_a_disk_too_small_for_a_checkpoint(recipe, unbroken, tmp_path):
    """A real write error, then space: the run ends as the unbroken one."""
    model_dir = tmp_path / "model"
    code, _, err = _run(recipe, model_dir, preexec_fn=_limit_file_size)
    assert code == pretrain.EXIT_FAILED
    assert "checkpoint could not be written" in err
    assert "the same command resumes" in err
    assert "Traceback" not in err
    code, _, err = _run(recipe, model_dir)
    assert code == 0, err
    assert _without_seconds(_lines(model_dir)) == _without_seconds(
        _lines(unbroken)
    )
    assert not list(model_dir.glob("*_temp"))


def test_unknown_flags_and_modes(recipe, tmp_path):
    code, _, err = _run(recipe, tmp_path / "model", "--mode=fly")
    assert code == 1 and "--mode" in err and "train_and_eval" in err
    assert not (tmp_path / "model").exists()


def _refused(recipe, model_dir, message):
    with pytest.raises(ConfigError, match=message):
        pretrain.pretrain(recipe, str(model_dir), "train_and_eval", "test")
    assert not os.path.exists(model_dir), "nothing is written before"


def test_a_batch_that_does_not_divide(recipe, tmp_path):
    recipe.trainer.phases[0].micro_batch_size = 3
    _refused(recipe, tmp_path / "m", "16 is not divisible by.*Nearest.*15, 18")
    recipe.trainer.phases[0].micro_batch_size = None
    recipe.trainer.phases[0].global_batch_size = 18
    _refused(recipe, tmp_path / "m", "18 .*4 shards")


def test_values_that_the_optimizer_or_the_model_refuse(recipe, tmp_path):
    recipe.trainer.optimizer.beta_1 = 1.5
    _refused(recipe, tmp_path / "m", "beta_1.*1.5")
    recipe.trainer.optimizer.beta_1 = 0.9
    recipe.task.model.encoder.bert.hidden_activation = "gelou"
    _refused(recipe, tmp_path / "m", "gelou")


@pytest.mark.parametrize("size", [1000, 30521, 30522 + 128])
def test_a_vocabulary_that_is_not_the_models(recipe, tmp_path, size):
    recipe.task.model.encoder.bert.vocab_size = size
    _refused(recipe, tmp_path / "m", f"30522 tokens.*vocab_size is {size}")


def test_data_of_another_seed_or_length(recipe, tmp_path):
    recipe.task.data.prepared_seed = 8
    _refused(recipe, tmp_path / "m", "--random_seed=7.*prepared_seed is 8")
    recipe.task.data.prepared_seed = 7
    recipe.trainer.phases[1].seq_length = 48
    _refused(recipe, tmp_path / "m", "'phase2' trains at length 48.*32, 64")


def test_data_that_is_not_there(recipe, tmp_path):
    recipe.task.data.input_path = str(tmp_path)
    _refused(recipe, tmp_path / "m", "manifest.json is missing")
    recipe.task.data.input_path = ""
    _refused(recipe, tmp_path / "m", "input_path is empty")


@pytest.fixture
def copy(recipe, tmp_path):
    """A copy of the prepared folder, to damage."""
    data = tmp_path / "data"
    shutil.copytree(recipe.task.data.input_path, data)
    recipe.task.data.input_path = str(data)
    return data


def test_a_truncated_or_missing_shard_is_named(recipe, copy, tmp_path):
    shard = copy / "length_64" / "train-00002-of-00004.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-10])
    _refused(recipe, tmp_path / "m", "train-00002-of-00004.*bytes.*--verify")
    shard.unlink()
    _refused(recipe, tmp_path / "m", "train-00002-of-00004.*is missing")


def test_another_vocabulary_or_counts_file_is_named(recipe, copy, tmp_path):
    vocabulary = (copy / "vocab.txt").read_text()
    lines = vocabulary.splitlines()
    (copy / "vocab.txt").write_text("\n".join(lines[::-1]) + "\n")
    _refused(recipe, tmp_path / "m", "vocab.txt is not the vocabulary")
    (copy / "vocab.txt").write_text(vocabulary)
    counts = (copy / "token_counts.npy").read_bytes()
    (copy / "token_counts.npy").write_bytes(counts[:-1] + b"x")
    _refused(recipe, tmp_path / "m", "token_counts.npy differs")
    (copy / "token_counts.npy").unlink()
    _refused(recipe, tmp_path / "m", "token_counts.npy is missing")


def test_a_flipped_byte_in_a_shard_is_named(recipe, copy, tmp_path):
    shard = copy / "length_32" / "train-00001-of-00004.tfrecord"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ConfigError, match="train-00001.*checksum.*--verify"):
        pretrain.pretrain(recipe, str(tmp_path / "m"), "train_and_eval", "")


def test_a_tpu_that_is_not_there(recipe, tmp_path):
    recipe.runtime.distribution_strategy = "tpu"
    recipe.runtime.tpu = "local"
    _refused(recipe, tmp_path / "m", "--tpu=local.*no TPU.*/dev/accel")


def test_evaluating_without_a_checkpoint(recipe, tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint to evaluate"):
        pretrain.pretrain(recipe, str(tmp_path / "m"), "eval", "")
    assert not (tmp_path / "m").exists()


def test_evaluating_the_last_checkpoint(recipe, unbroken, capsys):
    assert pretrain.pretrain(recipe, str(unbroken), "eval", "") == 0
    out = capsys.readouterr().out
    results = json.loads(out[out.index("{") :])
    want = json.loads((unbroken / "heldout.json").read_text())["phase2"]
    assert results == pytest.approx(want, rel=1e-6)


def test_two_processes_in_one_folder(recipe, tmp_path):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    with open(model_dir / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="in use"):
            pretrain.pretrain(recipe, str(model_dir), "train_and_eval", "")


def test_an_unwritable_model_dir(recipe, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        pretrain.pretrain(
            recipe, str(tmp_path / "file" / "m"), "train_and_eval", ""
        )


def test_a_folder_of_another_program(recipe, tmp_path):
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(ConfigError, match="another program"):
        pretrain.pretrain(recipe, str(tmp_path), "train_and_eval", "")
