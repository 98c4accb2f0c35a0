"""The recipe: typed dataclasses and a strict YAML reader.

Field names are tf-models' where it has the field, so that a flag, a YAML key
and a constructor argument agree letter for letter. No TensorFlow here;
`experiments.py` registers the same configuration with tf-models.
"""

import copy
import dataclasses
import difflib
import types
import typing
from typing import Any, Literal

import yaml

from bert_pretrain import files


class ConfigError(ValueError):
    """A recipe that cannot be run; the message names key, value, remedy."""


@dataclasses.dataclass
class BertEncoder:
    """tf-models' `BertEncoderConfig`, the fields that pretraining uses."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_activation: str = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    embedding_size: int | None = None


@dataclasses.dataclass
class Encoder:
    """One-of wrapper, as tf-models writes it: `encoder: {type, bert}`."""

    type: Literal["bert"] = "bert"
    bert: BertEncoder = dataclasses.field(default_factory=BertEncoder)


@dataclasses.dataclass
class Model:
    """Encoder, masked-LM head and next-sentence head."""

    encoder: Encoder = dataclasses.field(default_factory=Encoder)
    mlm_activation: str = "gelu"
    mlm_initializer_range: float = 0.02


@dataclasses.dataclass
class Data:
    """Prepared data and how it is masked.

    Attributes:
      input_path: Folder written by `bert_pretrain.prepare`.
      prepared_seed: The `--random_seed` the folder was prepared with; checked
        when given.
      masked_lm_prob: Share of the tokens that is predicted.
    """

    input_path: str = ""
    prepared_seed: int | None = None
    masked_lm_prob: float = 0.15


@dataclasses.dataclass
class Task:
    """What is learned, and from which data."""

    model: Model = dataclasses.field(default_factory=Model)
    data: Data = dataclasses.field(default_factory=Data)


@dataclasses.dataclass
class Phase:
    """One stretch of the run with its own length, batch and learning rate.

    Attributes:
      name: Shown in the progress, metrics and summary.
      seq_length: Tokens per sequence, with [CLS], [SEP] and padding.
      max_predictions_per_seq: Most masked tokens of one sequence.
      global_batch_size: Sequences per optimizer step over all replicas.
      micro_batch_size: Sequences a replica computes at once; the accumulation
        follows. None: its whole share.
      train_steps: Optimizer steps of this phase.
      learning_rate: Peak learning rate, global as the batch is.
      warmup_steps: Steps of the linear ramp from zero, at the phase's start.
      power: Exponent of the polynomial decay.
      end_learning_rate: Learning rate at the phase's end.
      peak: `configured`: ramp to `learning_rate`, then join the decay curve,
        as google-research, MLPerf and NVIDIA do. `on_decay_curve`: ramp to
        the curve, as tf-models does.
    """

    name: str = ""
    seq_length: int = 128
    max_predictions_per_seq: int = 20
    global_batch_size: int = 512
    micro_batch_size: int | None = None
    train_steps: int = 1
    learning_rate: float = 1e-3
    warmup_steps: int = 0
    power: float = 1.0
    end_learning_rate: float = 0.0
    peak: Literal["configured", "on_decay_curve"] = "configured"


@dataclasses.dataclass
class Optimizer:
    """Arguments of `lamb_tf.LAMB`, under its names."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    exclude_from_weight_decay: list[str] | None = dataclasses.field(
        default_factory=lambda: ["[Ll]ayer_?[Nn]orm", "bias"]
    )
    exclude_from_layer_adaptation: list[str] | None = None
    bias_correction: bool = True
    global_clipnorm: float | None = 1.0


@dataclasses.dataclass
class Trainer:
    """The run: phases, optimizer, and what is written when.

    Attributes:
      seed: Seeds initial weights, data order, masks and dropout.
      steps_per_loop: Optimizer steps per call into the compiled loop.
        `metrics.jsonl` has a line for each such loop, the means over it.
      checkpoint_interval: Steps between checkpoints.
      max_to_keep: Checkpoints kept.
      eval_batch_size: Sequences per evaluation step over all replicas.
    """

    phases: list[Phase] = dataclasses.field(default_factory=list)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    seed: int = 0
    steps_per_loop: int = 10
    checkpoint_interval: int = 1000
    max_to_keep: int = 3
    eval_batch_size: int = 64


@dataclasses.dataclass
class Runtime:
    """Where it runs; none of it changes what is computed.

    Attributes:
      distribution_strategy: As tf-models' flag.
      num_gpus: GPUs to use; 0 on CPU and TPU.
      num_logical_cpus: With `mirrored` and no GPU: replicas on the CPU.
      tpu: TPU name or address; `local` on a TPU VM.
      mixed_precision_dtype: Dtype of matrix products and activations;
        weights and optimizer state stay float32.
    """

    distribution_strategy: Literal["one_device", "mirrored", "tpu"] = (
        "one_device"
    )
    num_gpus: int = 0
    num_logical_cpus: int = 1
    tpu: str | None = None
    mixed_precision_dtype: Literal["float32", "bfloat16"] = "float32"


@dataclasses.dataclass
class Config:
    """A whole recipe: `task`, `trainer`, `runtime`, as in tf-models."""

    task: Task = dataclasses.field(default_factory=Task)
    trainer: Trainer = dataclasses.field(default_factory=Trainer)
    runtime: Runtime = dataclasses.field(default_factory=Runtime)


def as_dict(config: Any) -> dict[str, Any]:
    """Returns the configuration as plain dicts and lists."""
    return dataclasses.asdict(config)


def to_yaml(config: Config) -> str:
    """Returns YAML that `load` reads back to an equal configuration."""
    return yaml.safe_dump(as_dict(config), sort_keys=False)


def load(
    *paths: str,
    defaults: dict[str, Any] | None = None,
    overrides: str | None = None,
    flags: dict[str, Any] | None = None,
) -> Config:
    """Reads YAML files over the defaults, then `--params_override`.

    Args:
      *paths: YAML files; later ones override earlier ones. A list is replaced
        as a whole.
      defaults: What the files override, as from `as_dict`.
      overrides: YAML text, or `key.path=value` pairs joined by commas;
        `trainer.phases.0.train_steps=5` reaches into a list.
      flags: What the command line says of its own, over all the others.

    Raises:
      ConfigError: On an unknown key, a value of the wrong type, a file that
        is no YAML mapping, or a recipe that contradicts itself.
    """
    merged: dict[str, Any] = copy.deepcopy(defaults) if defaults else {}
    for path in paths:
        try:
            _merge(merged, _mapping(files.read_bytes(path).decode(), path))
        except OSError as e:
            raise ConfigError(
                f"--config_file={path}: {e.strerror or e}. Recipes stand in "
                "configs/."
            ) from e
        except UnicodeDecodeError as e:
            raise ConfigError(f"--config_file={path} is no UTF-8 text.") from e
    if overrides:
        _merge(merged, _parse_overrides(overrides))
    _merge(merged, flags or {})
    config = _build(Config, merged, "")
    validate(config)
    return config


def _mapping(text: str, source: str) -> dict[str, Any]:
    try:
        value = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as e:
        raise ConfigError(f"{source} is not valid YAML: {e}") from e
    if not isinstance(value, dict):
        raise ConfigError(
            f"{source} must be a mapping with task, trainer, runtime; got "
            f"{type(value).__name__}."
        )
    return value


def _parse_overrides(text: str) -> dict[str, Any]:
    if "=" not in text or ":" in text.split("=", 1)[0]:
        return _mapping(text, "--params_override")
    result: dict[str, Any] = {}
    # A comma inside a value belongs to it; only `,key.path=` separates pairs.
    pairs: list[str] = []
    for piece in text.split(","):
        if "=" in piece or not pairs:
            pairs.append(piece)
        else:
            pairs[-1] += "," + piece
    for pair in pairs:
        path, sep, value = pair.partition("=")
        if not sep:
            raise ConfigError(
                f"--params_override: {pair!r} is not key.path=value."
            )
        nested: Any = yaml.safe_load(value)
        for key in reversed(path.strip().split(".")):
            nested = {key: nested}
        _merge(result, nested)
    return result


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        elif isinstance(value, dict) and isinstance(base.get(key), list):
            # `trainer.phases.0.train_steps=5` reaches into a list.
            for index, item in value.items():
                try:
                    _merge(base[key][int(index)], item)
                except (ValueError, IndexError, TypeError) as e:
                    raise ConfigError(
                        f"{key}.{index}: {key} has entries 0 to "
                        f"{len(base[key]) - 1}."
                    ) from e
        else:
            base[key] = value


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML where a key given twice is an error, and 1e-3 is a number."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} stands twice",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _build(kind: Any, value: Any, path: str) -> Any:
    """Turns plain YAML values into `kind`, naming what does not fit."""
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, path)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in args:
            return value
        choices = ", ".join(map(str, args))
        raise ConfigError(f"{path}: {value!r} is not one of {choices}.")
    if origin is types.UnionType:
        if value is None:
            return None
        inner = next(a for a in args if a is not type(None))
        return _build(inner, value, path)
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"{path}: expected a list, got {value!r}.")
        return [_build(args[0], v, f"{path}[{i}]") for i, v in enumerate(value)]
    if kind is float and isinstance(value, (int, str)):
        # YAML 1.1 reads 1e-3 (no dot) as a string.
        try:
            if not isinstance(value, bool):
                return float(value)
        except ValueError:
            pass
    if isinstance(value, kind) and not (
        kind is not bool and isinstance(value, bool)
    ):
        return value
    raise ConfigError(f"{path}: expected {kind.__name__}, got {value!r}.")


def _build_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{path or 'recipe'}: expected keys, got {value!r}.")
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            close = difflib.get_close_matches(str(key), hints, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"Unknown key {_join(path, key)!r}.{hint} Known here: "
                f"{', '.join(hints)}."
            )
    return kind(
        **{k: _build(hints[k], v, _join(path, k)) for k, v in value.items()}
    )


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def validate(config: Config) -> None:
    """Raises `ConfigError` where a recipe contradicts itself."""

    def require(ok: bool, message: str) -> None:
        if not ok:
            raise ConfigError(message)

    bert, trainer = config.task.model.encoder.bert, config.trainer
    require(
        bert.hidden_size % bert.num_attention_heads == 0,
        f"hidden_size {bert.hidden_size} is not divisible by "
        f"num_attention_heads {bert.num_attention_heads}.",
    )
    for name in ("dropout_rate", "attention_dropout_rate"):
        require(
            0 <= getattr(bert, name) < 1,
            f"{name} must lie in [0, 1), got {getattr(bert, name)}.",
        )
    require(
        0 < config.task.data.masked_lm_prob < 1,
        "task.data.masked_lm_prob must lie in (0, 1), got "
        f"{config.task.data.masked_lm_prob}.",
    )
    require(
        bool(trainer.phases),
        "trainer.phases is empty: a recipe needs at least one phase. See "
        "configs/demo_cpu.yaml.",
    )
    names = [phase.name for phase in trainer.phases]
    for i, phase in enumerate(trainer.phases):
        where = f"trainer.phases[{i}]"
        require(bool(phase.name), f"{where}.name is missing.")
        require(
            names.count(phase.name) == 1,
            f"{where}.name {phase.name!r} stands twice.",
        )
        for key in (
            "seq_length",
            "max_predictions_per_seq",
            "global_batch_size",
            "train_steps",
        ):
            value = getattr(phase, key)
            require(value > 0, f"{where}.{key} must be positive, got {value}.")
        require(
            phase.micro_batch_size is None or phase.micro_batch_size > 0,
            f"{where}.micro_batch_size must be positive, got "
            f"{phase.micro_batch_size}.",
        )
        require(
            phase.seq_length <= bert.max_position_embeddings,
            f"{where}.seq_length {phase.seq_length} exceeds "
            f"max_position_embeddings {bert.max_position_embeddings}: the "
            "position table holds every phase from the start.",
        )
        require(
            phase.max_predictions_per_seq < phase.seq_length,
            f"{where}.max_predictions_per_seq {phase.max_predictions_per_seq} "
            f"must be below seq_length {phase.seq_length}.",
        )
        require(
            phase.learning_rate > 0,
            f"{where}.learning_rate must be positive, got "
            f"{phase.learning_rate}.",
        )
        require(
            0 <= phase.warmup_steps <= phase.train_steps,
            f"{where}.warmup_steps {phase.warmup_steps} must lie in [0, "
            f"train_steps {phase.train_steps}].",
        )
    for key in (
        "steps_per_loop",
        "checkpoint_interval",
        "max_to_keep",
        "eval_batch_size",
    ):
        value = getattr(trainer, key)
        require(value > 0, f"trainer.{key} must be positive, got {value}.")
    require(
        trainer.checkpoint_interval % trainer.steps_per_loop == 0,
        f"trainer.checkpoint_interval {trainer.checkpoint_interval} must be a "
        f"multiple of steps_per_loop {trainer.steps_per_loop}.",
    )
    runtime = config.runtime
    require(
        runtime.num_logical_cpus == 1
        or (
            runtime.distribution_strategy == "mirrored"
            and runtime.num_gpus == 0
        ),
        "runtime.num_logical_cpus needs distribution_strategy: mirrored and "
        f"num_gpus: 0; got {runtime.distribution_strategy}, "
        f"{runtime.num_gpus}.",
    )
    require(
        runtime.distribution_strategy != "tpu" or runtime.tpu is not None,
        "runtime.distribution_strategy is tpu, but no TPU is named: give "
        "--tpu=NAME, or --tpu=local on a TPU VM.",
    )
