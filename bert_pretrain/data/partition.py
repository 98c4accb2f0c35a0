"""Documents to neighbourhoods: held-out split, shuffle, bounded chunks.

Everything here is a function of (seed, text of the documents, their order),
and holds one window of documents at a time. A document is known by its text:
copies are one document, so no text stands in both splits.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator

from bert_pretrain.data.corpus import Document, Tally

# Documents are shuffled within a window and negatives come from the same
# chunk. More characters mix better and cost memory.
WINDOW_CHARACTERS = 64_000_000
CHUNK_CHARACTERS = 1_000_000
# So that a chunk of few, long documents still offers a choice of negatives.
CHUNK_DOCUMENTS = 8

TRAIN, HELDOUT = "train", "heldout"


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Documents of one split that give each other their negatives."""

    split: str
    index: int
    documents: tuple[Document, ...]


def chunks(
    documents: Iterable[Document],
    tallies: list[Tally],
    seed: int,
    heldout_fraction: float,
) -> Iterator[Chunk]:
    """Splits documents into chunks, in memory bounded by a window.

    Args:
        documents: In the order they are read.
        tallies: By source; duplicates are counted into them.
        seed: Determines split and order.
        heldout_fraction: Expected share of the documents to hold out.

    Yields:
        Chunks, numbered within their split. Each has at least
        `CHUNK_DOCUMENTS` documents, if its split has as many.

    Raises:
        ValueError: There are fewer than two distinct documents.
    """
    pending = {TRAIN: _Pending(TRAIN), HELDOUT: _Pending(HELDOUT)}
    unique = _without_duplicates(documents, tallies, seed)
    for number, window in enumerate(_windows(unique)):
        window.sort(key=lambda entry: entry[0])
        share = _heldout_count(window, heldout_fraction, first=number == 0)
        # By key ascending, so the first ones are those below the threshold.
        for position, (_, document) in enumerate(window):
            split = HELDOUT if position < share else TRAIN
            yield from pending[split].add(document)
    for split in (TRAIN, HELDOUT):
        yield from pending[split].finish()


def _without_duplicates(documents, tallies, seed):
    """Pairs of key and document; the key is uniform in [0, 1)."""
    seen = set()
    for document in documents:
        digest = hashlib.blake2b(
            document.text.strip().encode(),
            digest_size=16,
            salt=seed.to_bytes(8, "little", signed=True),
        ).digest()
        if digest in seen:
            tallies[document.source].problems["duplicate_documents"] += 1
            continue
        seen.add(digest)
        yield int.from_bytes(digest, "big") / 2**128, document
    if len(seen) < 2:
        raise ValueError(
            f"The corpus has {len(seen)} distinct document(s). Next-sentence "
            "prediction takes its negatives from a second one, and one is "
            "held out: give at least two, better hundreds. Documents are "
            "parted by blank lines (--input_format=lines) or are files "
            "(--input_format=files)."
        )


def _windows(entries):
    window, size = [], 0
    for key, document in entries:
        window.append((key, document))
        size += len(document.text)
        if size >= WINDOW_CHARACTERS:
            yield window
            window, size = [], 0
    if window:
        yield window


def _heldout_count(window, fraction: float, first: bool) -> int:
    """How many documents of a window, by ascending key, are held out."""
    below = sum(key < fraction for key, _ in window)
    if not first:
        return below
    # Both splits need a document, and two where they can have two: with one
    # alone, no pair can be a negative.
    count = len(window)
    fewest, most = min(2, count // 2), count - min(2, (count + 1) // 2)
    return min(max(below, fewest), most)


class _Pending:
    """Collects chunks of a split; keeps one back, to take up a short end."""

    def __init__(self, split: str):
        self._split = split
        self._index = 0
        self._full = []
        self._open = []
        self._characters = 0

    def add(self, document: Document) -> Iterator[Chunk]:
        self._open.append(document)
        self._characters += len(document.text)
        if (
            self._characters >= CHUNK_CHARACTERS
            and len(self._open) >= CHUNK_DOCUMENTS
        ):
            yield from self._emit()
            self._full, self._open, self._characters = self._open, [], 0

    def finish(self) -> Iterator[Chunk]:
        if len(self._open) < CHUNK_DOCUMENTS:
            self._full, self._open = self._full + self._open, []
        yield from self._emit()
        self._full = self._open
        yield from self._emit()

    def _emit(self) -> Iterator[Chunk]:
        if self._full:
            yield Chunk(self._split, self._index, tuple(self._full))
            self._index += 1
            self._full = []
