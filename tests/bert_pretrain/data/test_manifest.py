"""The manifest survives a round trip; a bad one names file and remedy."""

import json

import pytest

from bert_pretrain.data.manifest import (
    Dataset,
    Manifest,
    ShardInfo,
    Source,
    Split,
    TokenCounts,
    TokenizerInfo,
)


def a_manifest():
    shard = ShardInfo("length_128/train-00000-of-00001.tfrecord", 3, 1071, "a")
    split = Split(3, 1, 2, 300, 0.25, 0.5, (shard,))
    return Manifest(
        code_version="0.1.0",
        command="python -m bert_pretrain.prepare",
        seed=1,
        parameters={"seq_lengths": [128], "vocab_file": None},
        tokenizer=TokenizerInfo("v", 30522, True, "i"),
        vocab_file="vocab.txt",
        sources=(Source("s", 1, 9, 2, 4, 8, 1, 1, {"empty_files": 1}, "c"),),
        datasets={128: Dataset(128, "uint16", 357, {"train": split})},
        token_counts=TokenCounts("token_counts.npy", "t"),
    )


def test_round_trip(tmp_path):
    a_manifest().save(str(tmp_path))
    assert Manifest.load(str(tmp_path)) == a_manifest()
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="manifest.json.*cut short"):
        Manifest.load(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"not json"])
def test_not_json(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match="manifest.json is not JSON.*--over"):
        Manifest.load(str(tmp_path))


def edited(tmp_path, edit):
    a_manifest().save(str(tmp_path))
    path = tmp_path / "manifest.json"
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))
    return str(tmp_path)


def test_other_format(tmp_path):
    folder = edited(tmp_path, lambda t: t.update(format="bert_pretrain/9"))
    with pytest.raises(ValueError, match="'bert_pretrain/9'.*reads"):
        Manifest.load(folder)


@pytest.mark.parametrize(
    "edit, named",
    [
        (lambda t: t.pop("sources"), "sources"),
        (lambda t: t.update(colour="red"), "colour"),
        (lambda t: t.update(seed="one"), "seed is 'one'"),
        (lambda t: t["tokenizer"].pop("identity"), "tokenizer.*identity"),
        (lambda t: t["datasets"].update(big={}), "big"),
        (lambda t: t.update(datasets=[]), "no valid manifest"),
    ],
)
def test_wrong_keys_and_types_are_named(tmp_path, edit, named):
    with pytest.raises(ValueError, match=named):
        Manifest.load(edited(tmp_path, edit))


def test_unknown_length_lists_the_known_ones():
    assert a_manifest().dataset(128).record_bytes == 357
    with pytest.raises(ValueError, match="512.*available: 128.*=128,512"):
        a_manifest().dataset(512)
