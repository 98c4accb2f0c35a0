"""What a recipe must satisfy before anything is loaded or written."""

import math
from typing import Any

from bert_pretrain.strict_yaml import ConfigError


def check(config: Any) -> None:
    """Checks a `bert_pretrain.config.Config`.

    Raises:
      ConfigError: Where the recipe contradicts itself or a value is out of
        range; names the key, the value and what is allowed.
    """
    bert = config.task.model.encoder.bert
    _check_encoder(bert, config.task.model, config.task.data)
    _check_optimizer(config.trainer.optimizer)
    _check_phases(config.trainer.phases, bert.max_position_embeddings)
    _check_trainer(config.trainer)
    _check_runtime(config.runtime)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _at_least(owner: Any, where: str, **least: float | None) -> None:
    """Checks finite numbers against a minimum; None passes."""
    for key, minimum in least.items():
        value = getattr(owner, key)
        _require(
            value is None or (math.isfinite(value) and value >= minimum),
            f"{where}.{key} must be finite and at least {minimum}, "
            f"got {value}.",
        )


def _above_zero(owner: Any, where: str, *keys: str) -> None:
    for key in keys:
        value = getattr(owner, key)
        _require(
            value is None or (math.isfinite(value) and value > 0),
            f"{where}.{key} must be finite and positive, got {value}.",
        )


def _check_encoder(bert: Any, model: Any, data: Any) -> None:
    where = "task.model.encoder.bert"
    _above_zero(
        bert,
        where,
        "vocab_size",
        "hidden_size",
        "num_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "initializer_range",
        "embedding_size",
    )
    _at_least(bert, where, type_vocab_size=2)
    _above_zero(model, "task.model", "mlm_initializer_range")
    _require(
        bert.hidden_size % bert.num_attention_heads == 0,
        f"{where}.hidden_size {bert.hidden_size} is not divisible by "
        f"num_attention_heads {bert.num_attention_heads}.",
    )
    for name in ("dropout_rate", "attention_dropout_rate"):
        value = getattr(bert, name)
        _require(
            0 <= value < 1, f"{where}.{name} must lie in [0, 1), got {value}."
        )
    _require(
        0 < data.masked_lm_prob < 1,
        "task.data.masked_lm_prob must lie in (0, 1), got "
        f"{data.masked_lm_prob}.",
    )


def _check_optimizer(optimizer: Any) -> None:
    # The rest LAMB checks itself, before anything is written.
    _above_zero(optimizer, "trainer.optimizer", "global_clipnorm")


def _check_phases(phases: list[Any], positions: int) -> None:
    _require(
        bool(phases),
        "trainer.phases is empty: a recipe needs at least one phase. See "
        "configs/demo_cpu.yaml.",
    )
    names = [phase.name for phase in phases]
    for i, phase in enumerate(phases):
        where = f"trainer.phases[{i}]"
        _require(bool(phase.name), f"{where}.name is missing.")
        _require(
            names.count(phase.name) == 1,
            f"{where}.name {phase.name!r} stands twice.",
        )
        _above_zero(
            phase,
            where,
            "seq_length",
            "max_predictions_per_seq",
            "global_batch_size",
            "micro_batch_size",
            "train_steps",
            "learning_rate",
            "power",
        )
        _at_least(phase, where, warmup_steps=0, end_learning_rate=0.0)
        _require(
            phase.seq_length <= positions,
            f"{where}.seq_length {phase.seq_length} exceeds "
            f"max_position_embeddings {positions}: the position table holds "
            "every phase from the start.",
        )
        _require(
            phase.max_predictions_per_seq < phase.seq_length,
            f"{where}.max_predictions_per_seq {phase.max_predictions_per_seq} "
            f"must be below seq_length {phase.seq_length}.",
        )
        _require(
            phase.warmup_steps <= phase.train_steps,
            f"{where}.warmup_steps {phase.warmup_steps} exceeds train_steps "
            f"{phase.train_steps}.",
        )


def _check_trainer(trainer: Any) -> None:
    _above_zero(
        trainer,
        "trainer",
        "steps_per_loop",
        "checkpoint_interval",
        "max_to_keep",
        "eval_batch_size",
    )
    _require(
        trainer.checkpoint_interval % trainer.steps_per_loop == 0,
        f"trainer.checkpoint_interval {trainer.checkpoint_interval} must be a "
        f"multiple of steps_per_loop {trainer.steps_per_loop}.",
    )
    _require(
        0 <= trainer.seed < 2**31,
        f"trainer.seed must lie in [0, 2^31), got {trainer.seed}.",
    )


def _check_runtime(runtime: Any) -> None:
    _at_least(runtime, "runtime", num_gpus=0, num_logical_cpus=1)
    strategy = runtime.distribution_strategy
    _require(
        runtime.num_logical_cpus == 1
        or (strategy == "mirrored" and runtime.num_gpus == 0),
        "runtime.num_logical_cpus needs distribution_strategy: mirrored and "
        f"num_gpus: 0; got {strategy}, {runtime.num_gpus}.",
    )
    _require(
        strategy != "tpu" or runtime.tpu is not None,
        "runtime.distribution_strategy is tpu, but no TPU is named: give "
        "--tpu=NAME, or --tpu=local on a TPU VM.",
    )
