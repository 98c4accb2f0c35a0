"""The flags of `python -m bert_pretrain.prepare` as one checked value."""

import dataclasses
import os
import shlex

# How a text of each format is laid out, for bert_pretrain.data.sentences.
FORMATS = ("lines", "files", "jsonl")

# A worker starts for several seconds, as TensorFlow loads; in these a running
# one is through with about as much text.
_WORKER_BYTES = 32_000_000


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """What to prepare; every field is the flag of that name.

    Raises:
        ValueError: A value is out of range; names flag, value and range.
    """

    output_dir: str
    # Files, globs or folders; empty stands for the embedded corpus.
    input_file: tuple[str, ...] = ()
    input_format: str = "lines"
    # None stands for the embedded vocabulary.
    vocab_file: str | None = None
    do_lower_case: bool = True
    random_seed: int = 12345
    short_seq_prob: float = 0.1
    seq_lengths: tuple[int, ...] = (128, 512)
    num_shards: int = 8
    heldout_fraction: float = 0.05
    dupe_factor: int = 1
    workers: int = 0
    overwrite: bool = False

    def __post_init__(self):
        _check("output_dir", self.output_dir, bool(self.output_dir), "a folder")
        _check(
            "input_format",
            self.input_format,
            self.input_format in FORMATS,
            " or ".join(FORMATS),
        )
        # Hashed as eight bytes with each document (partition.py).
        _check(
            "random_seed",
            self.random_seed,
            -(2**63) <= self.random_seed < 2**63,
            "from -2**63 to 2**63 - 1",
        )
        _check(
            "short_seq_prob",
            self.short_seq_prob,
            0 <= self.short_seq_prob <= 1,
            "from 0 to 1",
        )
        lengths = self.seq_lengths
        # 5: [CLS] a [SEP] b [SEP]. 65,535: segment lengths are uint16.
        _check(
            "seq_lengths",
            ",".join(map(str, lengths)),
            bool(lengths)
            and len(set(lengths)) == len(lengths)
            and all(5 <= length <= 65535 for length in lengths),
            "different lengths from 5 to 65535",
        )
        _check(
            "num_shards",
            self.num_shards,
            1 <= self.num_shards <= 99999,
            "from 1 to 99999",
        )
        _check(
            "heldout_fraction",
            self.heldout_fraction,
            0 < self.heldout_fraction < 1,
            "above 0 and below 1",
        )
        _check("dupe_factor", self.dupe_factor, self.dupe_factor >= 1, ">= 1")
        _check(
            "workers", self.workers, self.workers >= 0, ">= 0 (0: automatic)"
        )

    def parameters(self) -> dict[str, object]:
        """The flags that determine the bytes made, ready for JSON."""
        tree = dataclasses.asdict(self)
        for name in ("output_dir", "workers", "overwrite"):
            del tree[name]
        tree["input_file"] = list(self.input_file)
        tree["seq_lengths"] = list(self.seq_lengths)
        return tree

    def command(self) -> str:
        """The command that makes the same bytes (add --output_dir)."""
        flags = []
        for name, value in self.parameters().items():
            if isinstance(value, list):
                value = ",".join(map(str, value))
            if value not in (None, ""):
                flags.append(shlex.quote(f"--{name}={value}"))
        return " ".join(["python -m bert_pretrain.prepare", *flags])

    def worker_count(self, input_bytes: int) -> int:
        """Processes to use for an input of some size.

        Args:
            input_bytes: The size of all sources.

        Returns:
            `workers`; if that is 0, as many as pay, at most all cores this
            process may use.
        """
        cores = len(os.sched_getaffinity(0))
        return self.workers or min(cores, 1 + input_bytes // _WORKER_BYTES)


def _check(flag: str, value, valid: bool, expected: str) -> None:
    if not valid:
        raise ValueError(f"--{flag}={value}: must be {expected}.")
