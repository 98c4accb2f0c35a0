"""Raw text to a prepared folder: shards, vocabulary, counts, manifest.

    python -m bert_pretrain.prepare --output_dir=/tmp/prepared

prepares the embedded corpus in both lengths. See docs/data.md.
"""

import os
import sys
import time

from absl import app, flags

from bert_pretrain import files
from bert_pretrain.data import build, corpus, folder, manifest
from bert_pretrain.data.config import FORMATS, PrepareConfig
from bert_pretrain.data.report import report
from bert_pretrain.data.verify import verify
from bert_pretrain.tokenizer import Vocabulary

_DEFAULT = PrepareConfig(output_dir="-")


def define_flags() -> None:
    """Defines one flag for each field of `PrepareConfig`, and --verify."""
    for name, text in {
        "input_file": "Files, globs or folders; none: the embedded corpus.",
        "seq_lengths": "Tokens per example, [CLS] and [SEP] included.",
    }.items():
        default = list(map(str, getattr(_DEFAULT, name)))
        flags.DEFINE_list(name, default, text)
    for define, name, text in (
        (flags.DEFINE_string, "vocab_file", "BERT vocabulary; none: uncased."),
        (flags.DEFINE_bool, "do_lower_case", "Lower-case, strip accents."),
        (flags.DEFINE_integer, "random_seed", "Seed of all that is random."),
        (flags.DEFINE_float, "short_seq_prob", "Share of short examples."),
        (flags.DEFINE_integer, "num_shards", "Training shards a length."),
        (flags.DEFINE_float, "heldout_fraction", "Documents held out."),
        (flags.DEFINE_integer, "dupe_factor", "Passes over the documents."),
        (flags.DEFINE_integer, "workers", "Processes; 0: up to all cores."),
        (flags.DEFINE_bool, "overwrite", "Replace what is there."),
    ):
        define(name, getattr(_DEFAULT, name), text)
    flags.DEFINE_enum(
        "input_format",
        _DEFAULT.input_format,
        FORMATS,
        "lines: a sentence a line, blank lines between documents; files: a "
        "document a file; jsonl: a document a line, under the key 'text'.",
    )
    flags.DEFINE_string("output_dir", None, "The folder to make.")
    flags.DEFINE_string("verify", None, "Check this prepared folder instead.")


def prepare(config: PrepareConfig) -> manifest.Manifest:
    """Makes a prepared folder, or finds it complete.

    What the folder held before stays as it is until all of the new is written.

    Args:
        config: The flags.

    Returns:
        The manifest.

    Raises:
        ValueError: Bad input, or the folder holds another preparation or
            other files that would be replaced.
        OSError: A file is missing or cannot be written.
    """
    vocab_file = config.vocab_file or corpus.embedded_vocabulary()
    vocabulary = Vocabulary.load(vocab_file)
    specs = corpus.sources_of(config.input_file, config.input_format)
    folder.finish(config.output_dir)
    path = files.join(config.output_dir, manifest.FILE_NAME)
    prepared = files.size(path) is not None
    if not prepared and not config.overwrite:
        folder.check_unclaimed(config.output_dir)
    if not prepared or config.overwrite:
        start = time.monotonic()
        made = build.build(config, vocabulary, specs)
        seconds = time.monotonic() - start
        megabytes = sum(source.bytes for source in made.sources) / 1e6
        print(
            f"{config.output_dir}: {megabytes:.1f} MB prepared in "
            f"{seconds:.1f} s, {megabytes / seconds:.2f} MB/s"
        )
        return made
    found = manifest.Manifest.load(config.output_dir)
    differences = build.differences(found, config, vocabulary, specs)
    if differences:
        raise ValueError(
            f"{config.output_dir} holds another preparation: "
            f"{'; '.join(differences)}. Use --overwrite or another folder."
        )
    print(f"{config.output_dir} is complete: nothing to do.")
    return found


def config_from_flags(values: flags.FlagValues) -> PrepareConfig:
    """The flags as a checked value; raises ValueError by name."""
    if not values.output_dir:
        raise ValueError("--output_dir is missing: the folder to make.")
    tree = {name: values[name].value for name in vars(_DEFAULT)}
    try:
        tree["seq_lengths"] = tuple(map(int, tree["seq_lengths"]))
    except ValueError as error:
        raise ValueError(f"--seq_lengths: {error}") from error
    return PrepareConfig(**tree | {"input_file": tuple(tree["input_file"])})


def main(argv: list[str]) -> None:
    """The command."""
    # TensorFlow only tokenizes here: it needs no GPU and has no news.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        if len(argv) > 1:
            raise ValueError(f"unexpected argument {argv[1]!r}")
        if flags.FLAGS.verify:
            faults = verify(flags.FLAGS.verify)
            print("\n".join(faults) or f"{flags.FLAGS.verify} is sound.")
            sys.exit(1 if faults else 0)
        made = prepare(config_from_flags(flags.FLAGS))
    except (ValueError, OSError) as error:
        sys.exit(f"prepare: error: {error}")
    print(report(made))


if __name__ == "__main__":
    define_flags()
    app.run(main)
