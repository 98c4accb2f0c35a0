"""Processor time beside tf-models'; prints the table of docs/data.md."""

import collections
import random
import time

import pytest

from bert_pretrain import prepare
from bert_pretrain.data import corpus, sentences
from bert_pretrain.data.config import PrepareConfig


@pytest.mark.slow
def test_ten_times_as_fast_as_tf_models(tmp_path, capsys):
    create_pretraining_data = pytest.importorskip(
        "official.nlp.data.create_pretraining_data"
    )
    from official.nlp.tools import tokenization

    try:
        specs = corpus.embedded_sources()
        vocab_file = corpus.embedded_vocabulary()
    except FileNotFoundError as error:
        pytest.skip(str(error))

    # The same sentences in the other's format, and its own defaults.
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(
            "\n".join(sentences.split(document, collections.Counter()))
            for spec in specs
            for document in corpus.read(spec, 0, corpus.Tally())
        )
    )
    reference = tokenization.FullTokenizer(vocab_file, do_lower_case=True)
    processor = create_pretraining_data.get_processor_text_fn(False, True)

    def theirs(length, predictions):
        instances = create_pretraining_data.create_training_instances(
            [str(text)],
            reference,
            processor,
            length,
            dupe_factor=1,
            short_seq_prob=0.1,
            masked_lm_prob=0.15,
            max_predictions_per_seq=predictions,
            rng=random.Random(12345),
        )
        create_pretraining_data.write_instance_to_example_files(
            instances,
            reference,
            length,
            predictions,
            [str(tmp_path / f"theirs-{length}.tfrecord")],
            gzip_compress=False,
            use_v2_feature_names=True,
        )

    def ours(*lengths):
        name = "-".join(map(str, lengths))
        made = prepare.prepare(
            PrepareConfig(
                output_dir=str(tmp_path / name),
                seq_lengths=lengths,
                workers=1,
                overwrite=True,
            )
        )
        return sum(source.tokens for source in made.sources)

    def seconds(function, *arguments):
        start = time.process_time()
        function(*arguments)
        return time.process_time() - start

    tokens = ours(128)  # Also loads TensorFlow, which is not timed.
    slow = [seconds(theirs, 128, 20), seconds(theirs, 512, 76)]
    slow.append(sum(slow))
    fast = [seconds(ours, 128), seconds(ours, 512), seconds(ours, 128, 512)]
    with capsys.disabled():
        print(f"\n{tokens:,} WordPieces; processor seconds, one process")
        print(f"{'':12}{'128':>8}{'512':>8}{'both':>8}")
        for name, row in (("tf-models", slow), ("prepare", fast)):
            print(f"{name:12}" + "".join(f"{value:8.1f}" for value in row))
        ratios = [a / b for a, b in zip(slow, fast, strict=True)]
        print(f"{'times':12}" + "".join(f"{value:8.0f}" for value in ratios))
    assert min(ratios) > 10
