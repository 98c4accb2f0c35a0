"""Nothing that stands in a folder is damaged before the new data is good."""

import dataclasses

import pytest

from bert_pretrain import files, prepare
from bert_pretrain.data import folder
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.manifest import Manifest
from bert_pretrain.data.verify import verify
from bert_pretrain.tokenizer import Vocabulary, identity

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b"]
OURS = [
    "length_16/heldout-00000-of-00001.tfrecord",
    "length_16/train-00000-of-00002.tfrecord",
    "length_16/train-00001-of-00002.tfrecord",
    "manifest.json",
    "token_counts.npy",
    "vocab.txt",
]


@pytest.fixture
def config(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(f"{n:b}\nb\naa ab.\n".replace("0", "a") for n in range(40))
    )
    vocab_file = tmp_path / "vocabulary.txt"
    vocab_file.write_text("\n".join(TOKENS))
    return PrepareConfig(
        output_dir=str(tmp_path / "out"),
        input_file=(str(text),),
        vocab_file=str(vocab_file),
        seq_lengths=(16,),
        num_shards=2,
        workers=1,
    )


@pytest.fixture
def other(config):
    """Another preparation over the first, of the same and of more files."""
    return dataclasses.replace(
        config, overwrite=True, random_seed=7, seq_lengths=(16, 32)
    )


def bytes_of(config):
    return {
        path[len(config.output_dir) + 1 :]: files.read_bytes(path)
        for path in files.expand(config.output_dir)
    }


@pytest.mark.parametrize(
    "text", ["", "\n\n", "a\nb\n", "a\n\nb\n", "a\nb\n\nb\na\n"]
)
def test_bad_input_leaves_the_earlier_preparation(config, tmp_path, text):
    prepare.prepare(config)
    before = bytes_of(config)
    assert sorted(before) == OURS
    bad = tmp_path / "bad.txt"
    bad.write_text(text)
    with pytest.raises(ValueError):
        prepare.prepare(
            dataclasses.replace(config, input_file=(str(bad),), overwrite=True)
        )
    assert bytes_of(config) == before and verify(config.output_dir) == []


# Vocabulary, three shards of 16, three of 32, token counts, manifest.
@pytest.mark.parametrize("written", range(9))
def test_a_full_disk_leaves_the_earlier_preparation(
    config, other, monkeypatch, written
):
    prepare.prepare(config)
    before = bytes_of(config)
    real, calls = files.write_bytes, []

    def write(path, content):
        if len(calls) == written:
            raise OSError(28, "No space left on device")
        calls.append(path)
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", write)
        with pytest.raises(OSError, match="No space"):
            prepare.prepare(other)
    assert bytes_of(config) == before and verify(config.output_dir) == []
    made = prepare.prepare(other)
    assert Manifest.load(config.output_dir) == made
    assert verify(config.output_dir) == []


# As above, but each is moved; the last is the manifest.
@pytest.mark.parametrize("moved", range(9))
def test_a_run_killed_as_it_moves_is_completed(
    config, other, monkeypatch, capsys, moved
):
    wanted = prepare.prepare(dataclasses.replace(other, overwrite=False))
    expected = bytes_of(config)
    prepare.prepare(dataclasses.replace(config, overwrite=True))
    real, calls = folder._move, []

    def move(source, target):
        if len(calls) == moved:
            raise KeyboardInterrupt
        calls.append(source)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "_move", move)
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare(other)
    with pytest.raises(FileNotFoundError, match="cut short"):
        Manifest.load(config.output_dir)
    capsys.readouterr()
    again = dataclasses.replace(other, overwrite=False)
    assert prepare.prepare(again) == wanted
    assert "complete" in capsys.readouterr().out
    assert bytes_of(config) == expected and verify(config.output_dir) == []


def test_what_a_killed_run_left_aside_is_replaced(config):
    aside = files.join(config.output_dir, folder.UNFINISHED)
    files.write_bytes(files.join(aside, "vocab.txt"), b"half")
    files.write_bytes(files.join(aside, OURS[0] + ".partial"), b"half")
    prepare.prepare(config)
    assert sorted(bytes_of(config)) == OURS


def test_a_manifest_of_another_version_aside_is_no_obstacle(config):
    aside = files.join(config.output_dir, folder.UNFINISHED)
    files.write_bytes(files.join(aside, "manifest.json"), b'{"format": "2"}')
    prepare.prepare(config)
    assert sorted(bytes_of(config)) == OURS


@pytest.mark.parametrize("name", [name for name in OURS if "json" not in name])
def test_files_of_the_users_are_not_replaced(config, name):
    path = files.join(config.output_dir, name)
    files.write_bytes(path, b"mine")
    with pytest.raises(ValueError, match="may be yours.*--overwrite") as error:
        prepare.prepare(config)
    assert str(error.value).startswith(path)
    assert bytes_of(config) == {name: b"mine"}
    # Nor with --overwrite, while the command fails.
    config = dataclasses.replace(config, overwrite=True)
    with pytest.raises(ValueError, match="num_shards"):
        prepare.prepare(dataclasses.replace(config, num_shards=9999))
    assert bytes_of(config) == {name: b"mine"}
    prepare.prepare(config)
    assert sorted(bytes_of(config)) == OURS


def test_a_manifest_of_the_users_is_not_replaced(config):
    path = files.join(config.output_dir, "manifest.json")
    files.write_bytes(path, b"{}")
    with pytest.raises(ValueError, match="manifest.json.*--overwrite"):
        prepare.prepare(config)
    assert bytes_of(config) == {"manifest.json": b"{}"}


def test_other_files_are_the_users(config):
    names = ["notes.txt", "length_16/notes.txt", "length_8/train.tfrecord"]
    for name in names:
        files.write_bytes(files.join(config.output_dir, name), b"mine")
    prepare.prepare(config)
    made = bytes_of(config)
    assert sorted(made) == sorted(OURS + names)
    assert [made[name] for name in names] == [b"mine"] * 3


def test_a_remote_folder(config, other):
    remote = {"output_dir": "ram://test_folder/out"}
    prepare.prepare(dataclasses.replace(config, **remote))
    assert verify(remote["output_dir"]) == []
    with pytest.raises(ValueError, match="num_shards"):
        prepare.prepare(dataclasses.replace(other, num_shards=9999, **remote))
    assert verify(remote["output_dir"]) == []
    remote_other = dataclasses.replace(other, **remote)
    made = prepare.prepare(remote_other)
    assert verify(remote["output_dir"]) == []
    assert prepare.prepare(other) == made
    assert all(
        files.read_bytes(files.join(remote["output_dir"], name)) == content
        for name, content in bytes_of(config).items()
    )
    assert not files.expand("ram://test_folder/out/prepare.unfinished/*")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_folders_vocabulary_is_the_one_used(config, tmp_path, end):
    crlf = tmp_path / "crlf.txt"
    crlf.write_bytes(end.join(TOKENS).encode())
    made = prepare.prepare(dataclasses.replace(config, vocab_file=str(crlf)))
    path = files.join(config.output_dir, made.vocab_file)
    assert files.read_bytes(path) == ("\n".join(TOKENS) + "\n").encode()
    read = Vocabulary.load(path)
    assert read == Vocabulary.load(str(crlf))
    assert identity(read, True) == made.tokenizer.identity
    assert read.sha256 == made.tokenizer.vocab_sha256
    assert verify(config.output_dir) == []
