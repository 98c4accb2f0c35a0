"""The one tokenizer: BERT's WordPiece by tensorflow-text, in graph.

Preparation, SQuAD and export all use this module, so a text has the same ids
everywhere; `identity` names a vocabulary with its casing and algorithm, and is
what manifests and checkpoints are compared by.

Reference: `FullTokenizer` of tf-models (official.nlp.tools.tokenization),
itself google-research/bert's. Known differences: docs/data.md.
"""

import dataclasses
import hashlib

import numpy as np

from bert_pretrain import files

# Part of the identity: change it whenever some text gets other ids.
ALGORITHM = "tensorflow_text.FastBertTokenizer/1"

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
)

# FullTokenizer gives [UNK] for longer words (there in characters).
MAX_BYTES_PER_WORD = 400

# What FullTokenizer deletes and FastBertTokenizer would turn into a space,
# parting words: control and format characters (soft hyphen, zero-width
# joiners, byte-order mark, ...), NUL and U+FFFD. Tab and newlines stay. As
# RE2 syntax, for tf.strings.regex_replace.
_DELETED = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Cf}\x{FFFD}]+"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A validated BERT vocabulary: `tokens` in the order of their ids."""

    tokens: tuple[str, ...]

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        """Reads and checks a `vocab.txt`, one token a line.

        Args:
            path: The file, local or remote.

        Returns:
            The vocabulary.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: Not UTF-8, a blank line, a stray carriage return, a
                token twice, or a special token missing; names file, line and
                remedy.
        """
        content = files.read_bytes(path)
        remedy = (
            "Use the vocab.txt of a BERT release, one token a line, UTF-8 "
            "without a byte-order mark"
        )
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ValueError(
                f"{path}, line {line}: not UTF-8. {remedy}."
            ) from error
        if text.startswith("\ufeff"):
            raise ValueError(f"{path}, line 1: a byte-order mark. {remedy}.")
        # Not splitlines: U+2028 and U+0085 are tokens of some vocabularies.
        tokens = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        first_seen: dict[str, int] = {}
        for line, token in enumerate(tokens, start=1):
            if not token.strip():
                raise ValueError(
                    f"{path}, line {line}: blank. Ids are line numbers, so a "
                    f"line may not be empty. {remedy}."
                )
            # At a line's end it would be taken for a line end when a copy of
            # this vocabulary is read again.
            if "\r" in token:
                raise ValueError(
                    f"{path}, line {line}: a carriage return that ends no "
                    f"line. {remedy}."
                )
            if token in first_seen:
                raise ValueError(
                    f"{path}, line {line}: token {token!r} stands already in "
                    f"line {first_seen[token]}. Remove one, if the model was "
                    f"not trained with both. {remedy}."
                )
            first_seen[token] = line
        missing = [token for token in SPECIAL_TOKENS if token not in first_seen]
        if missing:
            raise ValueError(
                f"{path}, {len(tokens)} lines: no BERT vocabulary, it lacks "
                f"{', '.join(missing)}. {remedy}."
            )
        return cls(tuple(tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def content(self) -> bytes:
        r"""A `vocab.txt` that `load` reads as this one; all lines end in \n."""
        return "".join(f"{token}\n" for token in self.tokens).encode()

    @property
    def sha256(self) -> str:
        """The SHA-256 of `content`: the same for any line ends read."""
        return files.sha256(self.content)

    def special_ids(self) -> dict[str, int]:
        """The ids of the five special tokens, by token."""
        return {token: self.tokens.index(token) for token in SPECIAL_TOKENS}


def identity(vocabulary: Vocabulary, lower_case: bool) -> str:
    """The name under which tokenizers are the same.

    Args:
        vocabulary: Its tokens and their order count, line ends do not.
        lower_case: Whether text is lower-cased and stripped of accents.

    Returns:
        A SHA-256 in hexadecimal over vocabulary, casing and algorithm.
    """
    digest = hashlib.sha256(f"{ALGORITHM}\nlower_case={lower_case}\n".encode())
    digest.update("\n".join(vocabulary.tokens).encode())
    return digest.hexdigest()


class Tokenizer:
    """Text to WordPiece ids, as graph operations.

    Args:
        vocabulary: The vocabulary; `[UNK]` stands for what it cannot spell.
        lower_case: Lower-cases and strips accents, as uncased BERT does.

    Example:
        >>> tokenizer = Tokenizer(Vocabulary.load("vocab.txt"))
        >>> tokenizer(["Hello, world!"])
        <tf.RaggedTensor [[7592, 1010, 2088, 999]]>
    """

    def __init__(self, vocabulary: Vocabulary, lower_case: bool = True):
        # Here and not above: TensorFlow loads slowly, and the vocabulary
        # alone does not need it.
        import tensorflow as tf
        import tensorflow_text

        self.vocabulary = vocabulary
        self.lower_case = lower_case
        self.identity = identity(vocabulary, lower_case)
        self._tf = tf
        self._normalize_utf8 = tensorflow_text.normalize_utf8
        self._tokenizer = tensorflow_text.FastBertTokenizer(
            vocab=list(vocabulary.tokens),
            max_bytes_per_word=MAX_BYTES_PER_WORD,
            token_out_type=tf.int32,
            unknown_token=UNK,
            # Not its own lower-casing, which decomposes by compatibility too:
            # it reads "6½" as "61⁄2", FullTokenizer as "6½".
            lower_case_nfd_strip_accents=False,
        )

    def __call__(self, texts):
        """Tokenizes strings.

        Args:
            texts: string tensor [N], UTF-8.

        Returns:
            int32 `tf.RaggedTensor` [N, (tokens)], without special tokens.
        """
        strings = self._tf.strings
        texts = strings.regex_replace(texts, _DELETED, "")
        if self.lower_case:
            texts = strings.lower(texts, encoding="utf-8")
            texts = self._normalize_utf8(texts, "NFD")
            texts = strings.regex_replace(texts, r"\p{Mn}+", "")
        return self._tokenizer.tokenize(texts)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenizes Python strings.

        Args:
            texts: N strings.

        Returns:
            The ids of all texts, int32 [total], and how many of them each
            text has, int64 [N].
        """
        if not texts:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        ragged = self(self._tf.constant(texts))
        return ragged.flat_values.numpy(), ragged.row_lengths().numpy()
