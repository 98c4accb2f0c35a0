"""What a prepared folder holds: `manifest.json`, written last.

Plain dataclasses, no TensorFlow and no NumPy: a launcher may read them. Every
field is a function of (text, seed, flags), so two runs over the same text
write the same bytes.
"""

import dataclasses
import json
import types
import typing

from bert_pretrain import files

FORMAT = "bert_pretrain/1"
FILE_NAME = "manifest.json"


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """One TFRecord file; `file` is relative to the prepared folder."""

    file: str
    examples: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Split:
    """The shards of one split (`train` or `heldout`) of one length.

    `dropped_for_even_lanes` counts the examples left out so that all shards
    are equally long; `tokens` counts what is no padding, with [CLS] and [SEP];
    `truncated` counts the pairs that were too long and cut (before dropping).
    """

    examples: int
    dropped_for_even_lanes: int
    truncated: int
    tokens: int
    padding_share: float
    random_next_share: float
    shards: tuple[ShardInfo, ...]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """All examples of one sequence length.

    `id_dtype` is the NumPy name of the little-endian ids, "uint16" or
    "int32"; `record_bytes` is the size of a record with its TFRecord framing.
    """

    seq_length: int
    id_dtype: str
    record_bytes: int
    splits: dict[str, Split]


@dataclasses.dataclass(frozen=True)
class Source:
    """What was read from one source, and what was wrong with it.

    `tokens` are WordPieces of the text, without special tokens.
    `content_sha256` covers the raw bytes and the names of its files.
    """

    name: str
    files: int
    bytes: int
    documents: int
    sentences: int
    tokens: int
    train_documents: int
    heldout_documents: int
    problems: dict[str, int]
    content_sha256: str


@dataclasses.dataclass(frozen=True)
class TokenizerInfo:
    """Which tokenizer made the ids; equal `identity` means equal ids."""

    vocab_sha256: str
    vocab_size: int
    lower_case: bool
    identity: str


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    """The file of token counts of the training split: int64 [vocab_size]."""

    file: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The whole folder.

    `parameters` are the flags that determine the bytes; `command` is the
    command that gives them again.
    """

    code_version: str
    command: str
    seed: int
    parameters: dict[str, object]
    tokenizer: TokenizerInfo
    vocab_file: str
    sources: tuple[Source, ...]
    datasets: dict[int, Dataset]
    token_counts: TokenCounts
    format: str = FORMAT

    @classmethod
    def load(cls, directory: str) -> "Manifest":
        """Reads the manifest of a prepared folder.

        Args:
            directory: The folder, local or remote.

        Returns:
            The manifest.

        Raises:
            FileNotFoundError: The folder holds none: not prepared, or the
                run was cut short.
            ValueError: The file is not JSON, of another format, or lacks a
                key; the message names file and remedy.
        """
        path = files.join(directory, FILE_NAME)
        remedy = "Make the folder anew with python -m bert_pretrain.prepare"
        try:
            content = files.read_bytes(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(
                f"{path} is missing: the folder is not prepared, or its "
                f"preparation was cut short. {remedy}."
            ) from error
        try:
            tree = json.loads(content)
        except ValueError as error:
            raise ValueError(
                f"{path} is not JSON ({error}). {remedy} --overwrite."
            ) from error
        found = tree.get("format") if isinstance(tree, dict) else None
        if found != FORMAT:
            raise ValueError(
                f"{path} has format {found!r}, this version reads {FORMAT!r}. "
                f"{remedy} --overwrite, or use the version that wrote it."
            )
        try:
            return _decode(cls, tree, "")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path} is no valid manifest: {error}. {remedy} --overwrite."
            ) from error

    def save(self, directory: str) -> None:
        """Writes `manifest.json` into `directory`, whole or not at all."""
        # The format first: it says how to read the rest.
        tree = {"format": self.format} | dataclasses.asdict(self)
        content = json.dumps(tree, indent=1) + "\n"
        files.write_bytes(files.join(directory, FILE_NAME), content.encode())

    def dataset(self, seq_length: int) -> Dataset:
        """The examples of one sequence length.

        Args:
            seq_length: Tokens per example.

        Returns:
            Their description.

        Raises:
            ValueError: The folder has no such length; lists those it has.
        """
        if seq_length not in self.datasets:
            available = ", ".join(map(str, sorted(self.datasets)))
            raise ValueError(
                f"No examples of length {seq_length} were prepared; "
                f"available: {available}. Prepare with "
                f"--seq_lengths={available.replace(' ', '')},{seq_length}."
            )
        return self.datasets[seq_length]


def _decode(kind, tree, where: str):
    """Builds a value of type `kind` from JSON, with every key accounted for."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(tree, dict):
            raise ValueError(f"{where or 'the file'} is no object")
        hints = typing.get_type_hints(kind)
        unknown, missing = set(tree) - set(hints), set(hints) - set(tree)
        if unknown or missing:
            raise ValueError(
                f"{where or 'the top level'} has unknown keys "
                f"{sorted(unknown)} and lacks {sorted(missing)}"
            )
        fields = {
            key: _decode(hint, tree[key], f"{where}.{key}".lstrip("."))
            for key, hint in hints.items()
        }
        return kind(**fields)
    if origin is tuple:
        (item, _) = typing.get_args(kind)
        return tuple(_decode(item, x, f"{where}[]") for x in tree)
    if origin is dict:
        key_kind, item = typing.get_args(kind)
        return {
            key_kind(key): _decode(item, value, f"{where}.{key}")
            for key, value in tree.items()
        }
    if kind is float and type(tree) is int:
        return float(tree)
    if isinstance(kind, type) and kind is not object:
        if type(tree) is not kind:
            raise ValueError(f"{where} is {tree!r}, not {kind.__name__}")
    elif not isinstance(kind, type | types.UnionType):
        raise TypeError(f"{where} has a type no manifest holds: {kind}")
    return tree
