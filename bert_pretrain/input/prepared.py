"""A prepared folder, checked against the recipe before the first step."""

import io
import os

import numpy as np
import tensorflow as tf

from bert_pretrain.config import Config, ConfigError
from bert_pretrain.data import records
from bert_pretrain.data.manifest import Manifest

_PAD, _CLS, _SEP, _MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"


class PreparedData:
    """Manifest, vocabulary and shards of a folder written by `prepare`.

    Attributes:
      manifest: Its manifest.
      vocabulary: Tokens in id order.
      special_ids: Ids that masking leaves alone: [PAD], [CLS], [SEP].
      mask_id: Id of [MASK].
    """

    def __init__(self, input_path: str):
        """Opens the folder.

        Raises:
          ConfigError: If there is no complete prepared data.
        """
        if not input_path:
            raise ConfigError(
                "task.data.input_path is empty: name the folder that `python "
                "-m bert_pretrain.prepare --output_dir=...` wrote, e.g. "
                "--params_override=task.data.input_path=demo/data."
            )
        try:
            self.manifest = Manifest.load(input_path)
        except (OSError, ValueError) as e:
            raise ConfigError(f"task.data.input_path: {e}") from e
        self._path = input_path
        vocab_file = os.path.join(input_path, self.manifest.vocab_file)
        with tf.io.gfile.GFile(vocab_file) as f:
            self.vocabulary = f.read().split("\n")[
                : self.manifest.tokenizer.vocab_size
            ]
        ids = {token: i for i, token in enumerate(self.vocabulary)}
        self.special_ids = tuple(ids[t] for t in (_PAD, _CLS, _SEP))
        self.mask_id = ids[_MASK]

    def check(self, config: Config) -> None:
        """Checks that the data fits the recipe.

        Raises:
          ConfigError: Naming what differs, both values and the remedy.
        """
        have = self.manifest.tokenizer.vocab_size
        want = config.task.model.encoder.bert.vocab_size
        if have > want:
            raise ConfigError(
                f"The vocabulary of {self._path} has {have} tokens, but "
                f"task.model.encoder.bert.vocab_size is {want}: ids from "
                f"{want} on would have no embedding. Set vocab_size: {have}, "
                "or prepare with the vocabulary of the model."
            )
        seed = config.task.data.prepared_seed
        if seed is not None and seed != self.manifest.seed:
            raise ConfigError(
                f"{self._path} was prepared with --random_seed="
                f"{self.manifest.seed}, but task.data.prepared_seed is {seed}. "
                f"Prepare again with --random_seed={seed}, or set it to null."
            )
        for phase in config.trainer.phases:
            try:
                dataset = self.manifest.dataset(phase.seq_length)
            except ValueError as e:
                raise ConfigError(
                    f"Phase {phase.name!r} trains at length "
                    f"{phase.seq_length}: {e}"
                ) from e
            for split in ("train", "heldout"):
                self._check_sizes(dataset, split)

    def _check_sizes(self, dataset, split: str) -> None:
        for shard in dataset.splits[split].shards:
            path = os.path.join(self._path, shard.file)
            try:
                size = tf.io.gfile.stat(path).length
            except tf.errors.OpError as e:
                raise ConfigError(
                    f"Shard {path} cannot be read ({e.message}), but the "
                    "manifest lists it. Prepare the folder again."
                ) from e
            if size != shard.bytes:
                raise ConfigError(
                    f"Shard {path} has {size} bytes; the manifest says "
                    f"{shard.bytes}. It was cut short or changed. Find the "
                    "damage with `python -m bert_pretrain.prepare --verify="
                    f"{self._path}`, or prepare again."
                )

    def shards(self, seq_length: int, split: str) -> list[records.Records]:
        """Reads all shards of one length and split.

        Args:
          seq_length: Length of the examples.
          split: `train` or `heldout`.

        Returns:
          One `Records` per shard; for `train` all equally long.
        """
        dataset = self.manifest.dataset(seq_length)
        return [
            records.read_shard(
                os.path.join(self._path, shard.file),
                seq_length,
                dataset.id_dtype,
            )
            for shard in dataset.splits[split].shards
        ]

    def token_counts(self) -> np.ndarray:
        """Returns the training text's count of each id, int64 [vocab_size]."""
        counts = self.manifest.token_counts
        path = os.path.join(self._path, counts.file)
        with tf.io.gfile.GFile(path, "rb") as f:
            return np.load(io.BytesIO(f.read()), allow_pickle=False)

    def identity(self) -> dict[str, object]:
        """What makes a run on other data another run, for `model_dir`."""
        return {
            "tokenizer": self.manifest.tokenizer.identity,
            "shards": {
                length: [s.sha256 for s in d.splits["train"].shards]
                for length, d in sorted(self.manifest.datasets.items())
            },
        }
