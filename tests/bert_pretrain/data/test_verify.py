"""Verification finds every damage done to a real prepared folder."""

import hashlib
import json
import shutil

import pytest

from bert_pretrain import prepare
from bert_pretrain.data import corpus, records
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.verify import verify

SHARD = "length_32/train-00001-of-00003.tfrecord"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    try:
        summaries = corpus.embedded_sources()[1]
        corpus.embedded_vocabulary()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("sound")
    articles = json.load(open(summaries.paths[0])).values()
    texts = [article["extract"] for article in list(articles)[:60]]
    path = folder / "articles.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    prepare.prepare(
        PrepareConfig(
            output_dir=str(folder / "out"),
            input_file=(str(path),),
            input_format="jsonl",
            seq_lengths=(32, 64),
            num_shards=3,
            workers=1,
        )
    )
    return folder / "out"


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "out")


def test_sound(folder):
    assert verify(str(folder)) == []


def test_a_flipped_byte(folder):
    path = folder / SHARD
    content = bytearray(path.read_bytes())
    size = records.record_bytes(32, "uint16")
    content[2 * size + 60] ^= 1
    path.write_bytes(content)
    (fault,) = verify(str(folder))
    assert str(path) in fault and f"at byte {2 * size} " in fault


def test_a_truncated_shard(folder):
    path = folder / SHARD
    content = path.read_bytes()
    size = records.record_bytes(32, "uint16")
    path.write_bytes(content[:-5])
    (fault,) = verify(str(folder))
    assert str(path) in fault and f"byte {len(content) - 5}" in fault
    path.write_bytes(content[:-size])
    (fault,) = verify(str(folder))
    assert f"ends at byte {len(content) - size}" in fault


@pytest.mark.parametrize(
    "name", [SHARD, "vocab.txt", "token_counts.npy", SHARD.replace("32", "64")]
)
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    (fault,) = verify(str(folder))
    assert name in fault


@pytest.mark.parametrize("name", ["vocab.txt", "token_counts.npy"])
def test_another_file_in_its_place(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    (fault,) = verify(str(folder))
    assert name in fault


def test_two_shards_exchanged(folder):
    other = folder / SHARD.replace("00001-of", "00002-of")
    shutil.copy(other, folder / SHARD)
    assert any("sha256" in fault for fault in verify(str(folder)))


@pytest.mark.parametrize(
    "array, place, value, fault",
    [
        ("ids", (4, 3), 40000, "an id outside the vocabulary"),
        ("ids", (4, 0), 5, "no [CLS] at its start"),
        ("segment_lengths", (4, 0), 31, "segments longer"),
        ("segment_lengths", (4, 1), 1, "an empty segment"),
        ("labels", 4, 2, "a label that is neither 0 nor 1"),
    ],
)
def test_wrong_examples_with_right_checksums(
    folder, array, place, value, fault
):
    path, manifest = folder / SHARD, folder / "manifest.json"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    read = records.read_shard(str(path), 32, "uint16")
    read = records.Records(*(part.copy() for part in read))
    getattr(read, array)[place] = value
    records.write_shard(str(path), *read)
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(manifest.read_text().replace(before, after))
    faults = verify(str(folder))
    offset = 4 * records.record_bytes(32, "uint16")
    assert f"{path}: record 4 at byte {offset} has {fault}" in faults[0]


def test_no_manifest(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="manifest.json"):
        verify(str(folder))
