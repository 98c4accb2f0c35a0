"""A prepared folder, checked against the recipe before the first step."""

import io

import numpy as np

from bert_pretrain import files, tokenizer
from bert_pretrain.config import Config, ConfigError
from bert_pretrain.data import records
from bert_pretrain.data.manifest import Dataset, Manifest

# A vocabulary may be padded up to a multiple of this in the model.
_VOCAB_PADDING = 128


class PreparedData:
    """Manifest, vocabulary and shards of a folder written by `prepare`.

    Attributes:
      manifest: Its manifest.
      vocab_size: Tokens of its vocabulary.
      special_ids: Ids that masking leaves alone: [PAD], [CLS], [SEP].
      mask_id: Id of [MASK].
    """

    def __init__(self, input_path: str):
        """Opens the folder.

        Raises:
          ConfigError: If there is no complete prepared data, or its
            vocabulary is not the one the shards were made with.
        """
        if not input_path:
            raise ConfigError(
                "task.data.input_path is empty: name the folder that `python "
                "-m bert_pretrain.prepare --output_dir=...` wrote, e.g. "
                "--params_override=task.data.input_path=demo/data."
            )
        self._path = input_path
        try:
            self.manifest = Manifest.load(input_path)
            vocabulary = tokenizer.Vocabulary.load(
                files.join(input_path, self.manifest.vocab_file)
            )
        except (OSError, ValueError) as e:
            raise ConfigError(f"task.data.input_path: {e}") from e
        made_with = self.manifest.tokenizer
        identity = tokenizer.identity(vocabulary, made_with.lower_case)
        if identity != made_with.identity:
            raise self._damaged(
                self.manifest.vocab_file,
                "is not the vocabulary that the manifest names "
                f"({identity[:12]} there, {made_with.identity[:12]} in it)",
            )
        ids = vocabulary.special_ids()
        self.vocab_size = len(vocabulary)
        self.special_ids = tuple(
            ids[t] for t in (tokenizer.PAD, tokenizer.CLS, tokenizer.SEP)
        )
        self.mask_id = ids[tokenizer.MASK]

    def check(self, config: Config) -> None:
        """Checks that the data fits the recipe.

        Raises:
          ConfigError: Naming what differs, both values and the remedy.
        """
        want = config.task.model.encoder.bert.vocab_size
        if not 0 <= want - self.vocab_size < _VOCAB_PADDING:
            raise ConfigError(
                f"The vocabulary of {self._path} has {self.vocab_size} tokens, "
                f"but task.model.encoder.bert.vocab_size is {want}. Set "
                f"vocab_size: {self.vocab_size} (up to {_VOCAB_PADDING - 1} "
                "more as padding), or prepare with the model's vocabulary."
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

    def _check_sizes(self, dataset: Dataset, split: str) -> None:
        for shard in dataset.splits[split].shards:
            size = files.size(files.join(self._path, shard.file))
            if size is None:
                raise self._damaged(shard.file, "is missing")
            if size != shard.bytes:
                raise self._damaged(
                    shard.file,
                    f"has {size} bytes, the manifest says {shard.bytes}",
                )

    def shards(
        self, seq_length: int, split: str, wanted: range | None = None
    ) -> dict[int, records.Records]:
        """Reads shards of one length and split.

        Args:
          seq_length: Length of the examples.
          split: `train` or `heldout`.
          wanted: Numbers of the shards to read; all by default.

        Returns:
          `Records` by shard number; for `train` all equally long.

        Raises:
          ConfigError: If a shard is not what the manifest says; names it.
        """
        dataset = self.manifest.dataset(seq_length)
        infos = dataset.splits[split].shards
        result = {}
        for number in wanted or range(len(infos)):
            name = infos[number].file
            path = files.join(self._path, name)
            content = files.read_bytes(path)
            if files.sha256(content) != infos[number].sha256:
                raise self._damaged(name, "differs from its checksum")
            result[number] = records.parse_shard(
                path, content, seq_length, dataset.id_dtype
            )
        return result

    def token_counts(self) -> np.ndarray:
        """Returns the training text's count of each id, int64 [vocab_size]."""
        counts = self.manifest.token_counts
        try:
            content = files.read_bytes(files.join(self._path, counts.file))
        except FileNotFoundError as e:
            raise self._damaged(counts.file, "is missing") from e
        if files.sha256(content) != counts.sha256:
            raise self._damaged(counts.file, "differs from its checksum")
        return np.load(io.BytesIO(content), allow_pickle=False)

    def identity(self) -> dict[str, object]:
        """What makes a run on other data another run, for `model_dir`."""
        return {
            "tokenizer": self.manifest.tokenizer.identity,
            "shards": {
                length: [s.sha256 for s in d.splits["train"].shards]
                for length, d in sorted(self.manifest.datasets.items())
            },
        }

    def _damaged(self, name: str, what: str) -> ConfigError:
        return ConfigError(
            f"{files.join(self._path, name)} {what}. See what else is damaged "
            f"with `python -m bert_pretrain.prepare --verify={self._path}`, "
            "then prepare the folder again with --overwrite."
        )
