from bert_pretrain.reporting import summary


def test_the_table_lines_up_and_says_how_far_below_the_baseline():
    phase = {
        "seq_length": 128,
        "global_batch_size": 64,
        "steps": 1700,
        "mlm_loss": 5.5,
        "unigram_loss": 7.0,
        "mlm_accuracy": 0.25,
        "nsp_loss": 0.5,
        "nsp_accuracy": 0.75,
    }
    text = summary.table(
        [
            {"name": "phase1", **phase},
            {"name": "a longer name", **phase, "mlm_loss": 7.25},
        ]
    )
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert " 1.500 " in lines[2] and " -0.250 " in lines[3]
    assert "25.0%" in lines[2]


def test_json_is_replaced_whole(tmp_path):
    path = str(tmp_path / "summary.json")
    assert summary.read_json(path, {"none": True}) == {"none": True}
    for value in ({"a": 1}, {"b": [2]}):
        summary.write_json(path, value)
        assert summary.read_json(path, None) == value
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_versions_name_what_a_result_depends_on():
    found = summary.versions()
    assert found["tensorflow"].startswith("2.20")
    assert found.keys() >= {"lamb_tf", "bert_pretrain", "python"}
