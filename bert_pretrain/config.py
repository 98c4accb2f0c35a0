"""The recipe: typed dataclasses, read from strict YAML.

Field names are tf-models' where it has the field, so that a flag, a YAML key
and a constructor argument agree letter for letter. No TensorFlow here;
`experiments.py` registers the same configuration with tf-models.
"""

import copy
import dataclasses
from typing import Any, Literal

import yaml

from bert_pretrain import files, recipe_checks, strict_yaml
from bert_pretrain.strict_yaml import ConfigError


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
    """Where it runs. Only the precision changes what is computed.

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
            text = files.read_bytes(path).decode()
            strict_yaml.merge(merged, strict_yaml.mapping(text, path))
        except OSError as e:
            raise ConfigError(
                f"--config_file={path}: {e.strerror or e}. Recipes stand in "
                "configs/."
            ) from e
        except UnicodeDecodeError as e:
            raise ConfigError(f"--config_file={path} is no UTF-8 text.") from e
    if overrides:
        strict_yaml.merge(merged, strict_yaml.overrides(overrides))
    strict_yaml.merge(merged, flags or {})
    config = strict_yaml.build(Config, merged)
    recipe_checks.check(config)
    return config
