"""Sentence splitting on prose, and on what is none."""

import collections

from bert_pretrain.data import sentences
from bert_pretrain.data.corpus import Document


def split(text, layout):
    problems = collections.Counter()
    return sentences.split(Document(0, layout, text), problems), problems


def test_abbreviations_initials_quotes():
    text = (
        "Mr. J. F. Kennedy met Dr. Smith at 5 p.m. on Jan. 5. It cost $3.5 "
        'million, e.g. for arms (see p. 7). "Yes!" he said. St. Louis vs. '
        "Chicago Inc. is No. 1. He left the U.S. Senate. The end."
    )
    found, problems = split(text, "wrapped")
    assert found == [
        "Mr. J. F. Kennedy met Dr. Smith at 5 p.m. on Jan. 5.",
        "It cost $3.5 million, e.g. for arms (see p. 7).",
        '"Yes!" he said.',
        "St. Louis vs. Chicago Inc. is No. 1.",
        "He left the U.S. Senate.",
        "The end.",
    ]
    assert not problems


def test_wrapped_lines_are_joined_paragraphs_are_not():
    text = "The session\nopened. It\nclosed.\n\nA heading\n \nNext."
    assert split(text, "wrapped")[0] == [
        "The session opened.",
        "It closed.",
        "A heading",
        "Next.",
    ]


def test_paragraphs_are_lines():
    text = "A heading\nThe first. The second.\n\nThird."
    assert split(text, "paragraphs")[0] == [
        "A heading",
        "The first.",
        "The second.",
        "Third.",
    ]


def test_given_sentences_stay_as_they_are():
    text = " One. Two. \n\tThree"
    assert split(text, "sentences")[0] == ["One. Two.", "Three"]


def test_a_line_of_ten_megabytes_loses_nothing():
    line = "We met at noon. " * 300_000 + "word " * 1_000_000
    found, problems = split(line, "sentences")
    limit = sentences.MAX_SENTENCE_CHARACTERS
    assert max(map(len, found)) <= limit
    assert " ".join(found).split() == line.split()
    assert problems["overlong_lines_split"] == 1
    assert problems["overlong_sentences_split"] == 1


def test_a_word_without_end_is_cut_at_the_limit():
    found, problems = split("x" * 10_000, "wrapped")
    assert [len(part) for part in found] == [4000, 4000, 2000]
    assert problems == {"overlong_sentences_split": 1}
