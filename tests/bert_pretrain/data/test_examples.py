"""A chunk's counts, by source."""

import pytest

from bert_pretrain.data import examples
from bert_pretrain.data.config import PrepareConfig
from bert_pretrain.data.corpus import Document
from bert_pretrain.data.partition import Chunk
from bert_pretrain.tokenizer import Tokenizer, Vocabulary


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(
        Vocabulary(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"))
    )


def make(tokenizer, documents, **changes):
    chunk = Chunk(
        "heldout",
        0,
        tuple(
            Document(source, "sentences", text) for source, text in documents
        ),
    )
    config = PrepareConfig(output_dir="-", short_seq_prob=0.0, **changes)
    return examples.make_examples(chunk, tokenizer, config)


# Alone in a split: nothing follows its last sentence, nothing random does.
LONELY = "aaaa\naaaa\naaaaaa"
# Of accents alone: it has characters, and no tokens.
ACCENTS = "\u0301"


@pytest.mark.parametrize("lengths", [(9,), (9, 8), (8, 9)])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_sentence_without_partner_counts_once(tokenizer, lengths, passes):
    made = make(
        tokenizer,
        [(0, LONELY)],
        seq_lengths=lengths,
        dupe_factor=passes,
    )
    # 9 and 8 leave six and five tokens: two sentences and, alone, the third.
    assert made.sources[0].problems["sentences_without_partner"] == 1
    assert all(len(made.examples[n].labels) == passes for n in lengths)


def test_lengths_that_leave_out_others_count_each_sentence(tokenizer):
    # Four tokens fill up with the first sentence: each is alone.
    made = make(tokenizer, [(0, LONELY)], seq_lengths=(9, 7))
    assert made.sources[0].problems["sentences_without_partner"] == 3
    assert len(made.examples[7].labels) == 0


@pytest.mark.parametrize(
    "documents",
    [
        [(0, LONELY), (1, ACCENTS)],
        [(1, ACCENTS), (0, LONELY)],
        [(1, ACCENTS), (0, LONELY), (2, ACCENTS)],
    ],
)
def test_its_source_is_that_of_its_document(tokenizer, documents):
    made = make(tokenizer, documents, seq_lengths=(9,))
    counts = {
        source: found.problems["sentences_without_partner"]
        for source, found in made.sources.items()
    }
    assert counts.pop(0) == 1 and not any(counts.values())


def test_with_another_document_every_sentence_has_a_partner(tokenizer):
    made = make(tokenizer, [(0, LONELY), (1, "aa")], seq_lengths=(9, 7))
    for found in made.sources.values():
        assert found.problems["sentences_without_partner"] == 0
