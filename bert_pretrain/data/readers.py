"""Files to the texts of their documents, by input format.

What is odd about the bytes is counted in the tally of the source.
"""

import collections
import hashlib
import json
import os
from collections.abc import Iterator

from bert_pretrain import files


class Tally:
    """What was read from one source: size, checksum and problems by name."""

    def __init__(self):
        self.files = 0
        self.bytes = 0
        self.problems = collections.Counter()
        self._digest = hashlib.sha256()

    def open_file(self, path: str) -> None:
        """Begins a file; its name, not its place, is part of the checksum."""
        self.files += 1
        self._digest.update(f"\0{os.path.basename(path)}\0".encode())

    def add(self, raw: bytes) -> None:
        """Adds bytes read."""
        self.bytes += len(raw)
        self._digest.update(raw)

    def content_sha256(self) -> str:
        """The checksum of all files read."""
        return self._digest.hexdigest()


def _lines(path: str, tally: Tally) -> Iterator[str]:
    """The decoded lines of a file, without their ends."""
    tally.open_file(path)
    before = tally.bytes
    with files.open_read(path) as file:
        for raw in file:
            if tally.bytes == before and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise ValueError(
                    f"{path}: UTF-16 by its first bytes. Convert it: "
                    "iconv -f UTF-16 -t UTF-8"
                )
            tally.add(raw)
            line = _decode(raw, tally.problems).removesuffix("\n")
            if "\r" in line:
                tally.problems["carriage_returns"] += line.count("\r")
                # A lone carriage return ends a line too, as on old machines.
                yield from line.removesuffix("\r").split("\r")
            else:
                yield line
    if tally.bytes == before:
        tally.problems["empty_files"] += 1


def _decode(raw: bytes, problems: collections.Counter) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        already = raw.count("\ufffd".encode())
        problems["invalid_utf8_replaced"] += text.count("\ufffd") - already
        return text


def _read_lines(path: str, tally: Tally) -> Iterator[str]:
    document = []
    for line in _lines(path, tally):
        if line.strip():
            document.append(line)
        elif document:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)


def _read_files(path: str, tally: Tally) -> Iterator[str]:
    yield "\n".join(_lines(path, tally))


def _read_jsonl(path: str, tally: Tally) -> Iterator[str]:
    for line in _lines(path, tally):
        if not line.strip():
            continue
        try:
            text = json.loads(line.removeprefix("\ufeff"))["text"]
            if not isinstance(text, str):
                raise TypeError
        except (KeyError, TypeError):
            tally.problems["json_lines_without_text"] += 1
        # RecursionError: a line of ten thousand brackets.
        except (ValueError, RecursionError):
            tally.problems["invalid_json_lines"] += 1
        else:
            yield text


def _read_summaries(path: str, tally: Tally) -> Iterator[str]:
    for article in json.loads("\n".join(_lines(path, tally))).values():
        yield article["extract"]


# By format: the reader of a file, and how its documents are laid out.
READERS = {
    "lines": (_read_lines, "sentences"),
    "files": (_read_files, "wrapped"),
    "jsonl": (_read_jsonl, "paragraphs"),
    "summaries": (_read_summaries, "paragraphs"),
}
