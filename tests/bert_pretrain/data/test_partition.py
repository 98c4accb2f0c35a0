"""Held-out by document, bounded chunks, order from the seed alone."""

import itertools

import pytest

from bert_pretrain.data import partition
from bert_pretrain.data.corpus import Document, Tally


def documents(count, characters=100):
    return [
        Document(0, "sentences", f"Document {i}. ".ljust(characters, "x"))
        for i in range(count)
    ]


def run(docs, seed=1, fraction=0.05):
    tally = Tally()
    chunks = list(partition.chunks(docs, [tally], seed, fraction))
    by_split = {"train": [], "heldout": []}
    for chunk in chunks:
        by_split[chunk.split] += [doc.text for doc in chunk.documents]
    return chunks, by_split, tally


def test_every_document_is_in_one_split():
    docs = documents(5000)
    _, by_split, _ = run(docs)
    train, heldout = set(by_split["train"]), set(by_split["heldout"])
    assert not train & heldout
    assert train | heldout == {doc.text for doc in docs}
    # Binomial: 250 expected, standard deviation 15.4; five of them.
    assert abs(len(heldout) - 250) < 77


def test_membership_is_a_function_of_seed_and_text():
    docs = documents(1000)
    once = set(run(docs)[1]["heldout"])
    assert set(run(docs[::-1])[1]["heldout"]) == once
    assert set(run(docs, seed=2)[1]["heldout"]) != once
    assert run(docs)[0] == run(docs)[0]


def test_order_is_shuffled():
    train = run(documents(1000))[1]["train"]
    assert train != sorted(train)


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
@pytest.mark.parametrize(
    "count, heldout", [(2, (1, 1)), (3, (1, 1)), (4, (2, 2)), (9, (2, 7))]
)
def test_small_corpora_have_documents_on_both_sides(count, heldout, fraction):
    for seed in range(20):
        _, by_split, _ = run(documents(count), seed, fraction)
        assert heldout[0] <= len(by_split["heldout"]) <= heldout[1]
        assert len(by_split["heldout"]) + len(by_split["train"]) == count


def test_copies_are_one_document():
    docs = documents(10)
    _, by_split, tally = run(docs + docs[:3])
    assert len(by_split["train"]) + len(by_split["heldout"]) == 10
    assert tally.problems == {"duplicate_documents": 3}


@pytest.mark.parametrize("docs", [[], documents(1), documents(1) * 5])
def test_one_document_is_an_error(docs):
    with pytest.raises(ValueError, match=r"[01] distinct document.*second"):
        run(docs)


def test_chunks_are_bounded_and_not_lonely(monkeypatch):
    monkeypatch.setattr(partition, "CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(partition, "WINDOW_CHARACTERS", 7000)
    chunks, by_split, _ = run(documents(1003), fraction=0.2)
    for split in ("train", "heldout"):
        sizes = [len(c.documents) for c in chunks if c.split == split]
        indices = [c.index for c in chunks if c.split == split]
        assert indices == list(range(len(sizes)))
        assert set(sizes[:-1]) == {20}
        assert partition.CHUNK_DOCUMENTS <= sizes[-1] <= 28
    assert sum(len(c.documents) for c in chunks) == 1003


def test_reading_runs_no_further_than_a_window(monkeypatch):
    monkeypatch.setattr(partition, "CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(partition, "WINDOW_CHARACTERS", 10_000)
    read = []

    def endless():
        for document in itertools.cycle(documents(10**5)):
            read.append(document)
            yield document

    chunks = partition.chunks(endless(), [Tally()], 1, 0.05)
    for number in range(20):
        next(chunks)
        # Chunks given, the two kept back, a window of 100, the held-out.
        assert len(read) <= (number + 4) * 20 / 0.9 + 200
