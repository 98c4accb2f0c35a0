"""Documents to sentences, by sentencex (why: docs/data.md)."""

import collections
import re

import sentencex

from bert_pretrain.data.corpus import Document

# No sentence of prose is as long; the embedded corpus reaches 2,323. Longer
# ones are cut, or one line of 10 MB would be one sentence, all but 512 tokens
# of it lost.
MAX_SENTENCE_CHARACTERS = 4000

_BLANK_LINES = re.compile(r"\n\s*\n")


def split(document: Document, problems: collections.Counter) -> list[str]:
    """Splits a document into sentences.

    Args:
        document: Cleaned text and how it is laid out.
        problems: Counts into this: lines and sentences that were overlong.

    Returns:
        Sentences without blanks around them; none is empty, none is longer
        than `MAX_SENTENCE_CHARACTERS`.
    """
    if document.layout == "sentences":
        candidates = []
        for line in document.text.split("\n"):
            if len(line) > MAX_SENTENCE_CHARACTERS:
                problems["overlong_lines_split"] += 1
                candidates.extend(sentencex.segment("en", line))
            else:
                candidates.append(line)
    else:
        if document.layout == "wrapped":
            # A single newline is a wrapped line: the sentence goes on.
            paragraphs = [
                paragraph.replace("\n", " ")
                for paragraph in _BLANK_LINES.split(document.text)
            ]
        else:
            paragraphs = document.text.split("\n")
        candidates = [
            sentence
            for paragraph in paragraphs
            for sentence in sentencex.segment("en", paragraph)
        ]
    sentences = []
    for sentence in map(str.strip, candidates):
        if len(sentence) > MAX_SENTENCE_CHARACTERS:
            problems["overlong_sentences_split"] += 1
            sentences.extend(_cut(sentence))
        elif sentence:
            sentences.append(sentence)
    return sentences


def _cut(sentence: str) -> list[str]:
    """Cuts at the last blank before the limit, or at it where there is none."""
    parts, start = [], 0
    while start < len(sentence):
        end = start + MAX_SENTENCE_CHARACTERS
        if end < len(sentence):
            blank = sentence.rfind(" ", start + 1, end + 1)
            end = blank if blank > start else end
        parts.append(sentence[start:end].strip())
        start = end
    return [part for part in parts if part]
