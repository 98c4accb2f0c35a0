import json

from bert_pretrain.reporting.metrics_log import MetricsLog


def _write(path, steps):
    path.write_text(
        "".join(json.dumps({"step": s, "seconds": s / 2}) + "\n" for s in steps)
    )


def _steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_new_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(str(path), 0)
    assert log.seconds == 0
    log.write({"step": 1, "seconds": 2.0})
    log.write({"step": 2, "seconds": 3.0})
    assert _steps(path) == [1, 2]


def test_lines_after_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, [2, 4, 6, 8])
    log = MetricsLog(str(path), 4)
    assert _steps(path) == [2, 4]
    assert log.seconds == 2.0
    log.write({"step": 6, "seconds": 9.0})
    assert _steps(path) == [2, 4, 6]


def test_a_line_cut_by_a_kill_is_dropped_and_the_rest_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, [2, 4])
    with path.open("a") as f:
        f.write('{"step": 6, "sec')
    MetricsLog(str(path), 6)
    assert _steps(path) == [2, 4]


def test_a_line_without_its_newline_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, [2, 4])
    path.write_text(path.read_text()[:-1])
    MetricsLog(str(path), 4).write({"step": 4, "seconds": 2.0})
    assert _steps(path) == [2, 4]


def test_an_intact_log_is_not_rewritten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, [2, 4])
    before = path.stat().st_ino, path.stat().st_mtime_ns
    MetricsLog(str(path), 4)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before
