"""Parity with tf-models' FullTokenizer, and what a vocabulary must be."""

import collections
import random
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain.data import corpus, sentences
from bert_pretrain.tokenizer import Tokenizer, Vocabulary, identity


@pytest.fixture(scope="module")
def vocab_file():
    try:
        return corpus.embedded_vocabulary()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def both(request, vocab_file):
    """Our tokenizer and the reference, of one casing."""
    from official.nlp.tools import tokenization

    ours = Tokenizer(Vocabulary.load(vocab_file), request.param)
    reference = tokenization.FullTokenizer(
        vocab_file, do_lower_case=request.param
    )
    return ours, reference


def disagreements(both, texts):
    ours, reference = both
    ids, counts = ours.encode(texts)
    parts = np.split(ids, np.cumsum(counts)[:-1])
    wrong = []
    for text, part in zip(texts, parts, strict=True):
        expected = reference.convert_tokens_to_ids(reference.tokenize(text))
        if expected != part.tolist():
            wrong.append(text)
    return wrong


def test_embedded_corpus(both):
    try:
        specs = corpus.embedded_sources()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    texts = []
    for spec in specs:
        documents = list(corpus.read(spec, 0, corpus.Tally()))
        for document in random.Random(0).sample(documents, 30):
            texts += sentences.split(document, collections.Counter())
    assert len(texts) > 3000
    assert disagreements(both, texts) == []


@pytest.mark.slow
def test_whole_embedded_corpus(both, capsys):
    """The number in docs/data.md: `pytest -m slow -k whole_embedded`."""
    try:
        specs = corpus.embedded_sources()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    texts = [
        sentence
        for spec in specs
        for document in corpus.read(spec, 0, corpus.Tally())
        for sentence in sentences.split(document, collections.Counter())
    ]
    wrong = disagreements(both, texts)
    with capsys.disabled():
        print(
            f"\n{len(texts):,} sentences, {both[0].encode(texts)[1].sum():,} "
            f"tokens, lower_case={both[0].lower_case}: {len(wrong)} differ"
        )
    assert wrong == []


HARD = [
    "",
    "   ",
    "\t\n\r",
    "[MASK] [SEP] [CLS]x",
    "Σίσυφος ΟΔΟΣ",
    "İstanbul Straße ẞ",
    "a\u0300 e\u0301 é ñ Å ộ",
    "中文abc中日本語 한국어",
    "😀👍🏽 👩\u200d🚀",
    "don't U.S.A. $3.50 a-b_c",
    "6½ 1⁄2 ① ﬁnance Ａbc ²",
    "x" * 399,
    "x" * 401,
    "soft\u00adhyphen zero\u200bwidth \ufeffmark",
    "NBSP\u00a0x\u2028line\u2029par\u0085next",
    "ab\ufffdcd a\x00b a\x07b",
    "हिन्दी עִבְרִית العَرَبِيَّة ไทย",
    "“quotes” — dash … ‹x› ¿qué? §5 †",
    "unaffable" * 20,
]


def test_hard_cases(both):
    assert disagreements(both, HARD) == []


def test_every_character_inside_a_word(both):
    # Unassigned ones differ where the two sides know other Unicode versions.
    texts = [
        f"ab{chr(code)}cd {chr(code)}"
        for code in range(1, min(sys.maxunicode, 0x20000), 3)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs")
    ]
    assert disagreements(both, texts) == []


def test_graph_and_eager_agree(both):
    ours, _ = both
    traced = tf.function(
        lambda texts: ours(texts).to_tensor(),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    assert (traced(HARD) == ours(HARD).to_tensor()).numpy().all()


def test_no_text(both):
    ids, counts = both[0].encode([])
    assert len(ids) == len(counts) == 0


def test_identity(vocab_file, tmp_path):
    vocabulary = Vocabulary.load(vocab_file)
    assert identity(vocabulary, True) != identity(vocabulary, False)
    # Line ends are no part of it, the order is.
    crlf = tmp_path / "crlf.txt"
    crlf.write_bytes(vocabulary.content.replace(b"\n", b"\r\n"))
    assert Vocabulary.load(str(crlf)) == vocabulary
    turned = tmp_path / "turned.txt"
    turned.write_text("\n".join(vocabulary.tokens[::-1]))
    assert identity(Vocabulary.load(str(turned)), True) != identity(
        vocabulary, True
    )


GOOD = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n"


@pytest.mark.parametrize(
    "content, message",
    [
        (GOOD + b"a\n", r"line 8: token 'a' stands already in line 6"),
        (GOOD + b"\nc\n", "line 8: blank"),
        (GOOD + b"  \nc\n", "line 8: blank"),
        (b"", "line 1: blank"),
        (GOOD.replace(b"[MASK]\n", b""), r"lacks \[MASK\]"),
        (b"the\nof\n", r"lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        (GOOD + b"caf\xe9\n", "line 8: not UTF-8"),
        (GOOD.decode().encode("utf-16"), "line 1: not UTF-8"),
        (b"\xef\xbb\xbf" + GOOD, "line 1: a byte-order mark"),
        (GOOD + b"c\r", "line 8: a carriage return"),
        (GOOD + b"c\r\r\n", "line 8: a carriage return"),
        (GOOD.replace(b"\n", b"\r"), "line 1: a carriage return"),
    ],
)
def test_bad_vocabularies_name_file_line_remedy(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        Vocabulary.load(str(path))
    assert str(path) in str(error.value)
    assert "vocab.txt of a BERT release" in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        GOOD.removesuffix(b"\n"),
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"\n", b"\r\n").removesuffix(b"\r\n"),
        GOOD.replace(b"\n", b"\r\n", 3),
    ],
)
def test_content_reads_back_as_the_same_vocabulary(tmp_path, content):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    vocabulary = Vocabulary.load(str(path))
    assert vocabulary.content == GOOD
    path.write_bytes(vocabulary.content)
    again = Vocabulary.load(str(path))
    assert again == vocabulary and again.sha256 == vocabulary.sha256
    assert identity(again, True) == identity(vocabulary, True)


def test_good_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(GOOD.removesuffix(b"\n"))
    vocabulary = Vocabulary.load(str(path))
    assert len(vocabulary) == 7
    assert vocabulary.special_ids()["[MASK]"] == 4
    ids, counts = Tokenizer(vocabulary).encode(["ab A", "c"])
    assert (ids.tolist(), counts.tolist()) == ([5, 6, 5, 1], [3, 1])


def test_missing_vocabulary(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Vocabulary.load(str(tmp_path / "nowhere"))
