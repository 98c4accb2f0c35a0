"""A whole run: every phase, in order, from wherever the last one stopped."""

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orbit
import tensorflow as tf

from bert_pretrain import phases as phase_arithmetic
from bert_pretrain.config import Config, ConfigError
from bert_pretrain.input import pipeline
from bert_pretrain.input.prepared import PreparedData
from bert_pretrain.modeling import pretrainer
from bert_pretrain.reporting import summary as summary_lib
from bert_pretrain.reporting.metrics_log import MetricsLog
from bert_pretrain.reporting.progress import Progress
from bert_pretrain.training.model_dir import CheckpointManager, ModelDir
from bert_pretrain.training.strategy import make_strategy
from bert_pretrain.training.trainer import HeldOutEvaluator, PretrainTrainer
from lamb_tf.schedules import MixedBatch, WarmupPolynomialDecay
from lamb_tf.tf_keras import LAMB


def make_schedule(config: Config) -> MixedBatch:
    """Returns the learning rate over the global step, all phases."""
    return MixedBatch(
        [
            WarmupPolynomialDecay(
                learning_rate=phase.learning_rate,
                warmup_steps=phase.warmup_steps,
                total_steps=phase.train_steps,
                power=phase.power,
                end=phase.end_learning_rate,
                peak=phase.peak,
            )
            for phase in config.trainer.phases
        ]
    )


class PretrainRun:
    """Trains a recipe in a `model_dir`; resumes what is there.

    Attributes:
      model_dir: The run's folder.
      model: The model.
      optimizer: LAMB; its `iterations` are the global step.
      controller: orbit's, with the checkpoint restored.
    """

    def __init__(
        self,
        config: Config,
        model_dir: str,
        say: Callable[[str], None] = print,
        must_resume: bool = False,
    ):
        """Checks everything that can be wrong, then restores.

        Args:
          config: A valid recipe.
          model_dir: The run's folder.
          say: Receives the lines about the set-up.
          must_resume: Refuse a folder without a checkpoint.

        Raises:
          ConfigError: Before anything is written: data, batch or devices do
            not fit the recipe, or the folder belongs to another run.
        """
        self._config = config
        self.model_dir = model_dir
        self._phases = config.trainer.phases
        self._spans = phase_arithmetic.spans(self._phases)
        self._data = PreparedData(config.task.data.input_path)
        self._data.check(config)
        self._strategy = make_strategy(config.runtime)
        self._plans = self._plan_batches(say)
        with self._strategy.scope():
            try:
                self._schedule = make_schedule(config)
                self.optimizer = LAMB(
                    self._schedule,
                    **dataclasses.asdict(config.trainer.optimizer),
                )
                self.model = pretrainer.build_model(
                    config.task.model, config.trainer.seed
                )
            except ValueError as e:
                raise ConfigError(f"The recipe cannot be built: {e}") from e
            self._trainer = PretrainTrainer(
                self._strategy, self.model, self.optimizer
            )
            self._evaluator = HeldOutEvaluator(
                self._strategy, self.model, self._data.token_counts()
            )
        self._dir = ModelDir(model_dir)
        if must_resume and not self._dir.has_checkpoint:
            raise ConfigError(
                f"--model_dir={model_dir} has no checkpoint to evaluate. Train "
                "first: --mode=train_and_eval."
            )
        self._dir.claim(config, self._data.identity())
        checkpoint = tf.train.Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            **self.model.checkpoint_items,
        )
        with _orbit_is_quiet():
            self.controller = orbit.Controller(
                strategy=self._strategy,
                trainer=self._trainer,
                evaluator=self._evaluator,
                global_step=self.optimizer.iterations,
                steps_per_loop=config.trainer.steps_per_loop,
                checkpoint_manager=CheckpointManager(
                    checkpoint,
                    self._dir.path,
                    max_to_keep=config.trainer.max_to_keep,
                    step_counter=self.optimizer.iterations,
                    checkpoint_interval=config.trainer.checkpoint_interval,
                ),
                train_actions=[self._after_loop],
                summary_dir=self._dir.tensorboard,
            )
        self._heldout = summary_lib.read_json(self._dir.heldout, {})
        if self.step and not self.complete:
            say(
                f"Resuming from step {self.step} of {self.total_steps} in "
                f"{model_dir}."
            )

    @property
    def step(self) -> int:
        """Global step: optimizer updates done."""
        return int(self.optimizer.iterations.numpy())

    @property
    def total_steps(self) -> int:
        """Global steps of all phases."""
        return self._spans[-1].last_step

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train or to evaluate."""
        return (
            self.step >= self.total_steps
            and self._phases[-1].name in self._heldout
        )

    def train(self) -> None:
        """Trains all that is left, evaluating after each phase."""
        self._log = MetricsLog(self._dir.metrics, self.step)
        self._progress = Progress(self.total_steps, self.step)
        try:
            for phase, span in zip(self._phases, self._spans, strict=True):
                if self.step < span.last_step:
                    self._train_phase(span)
                due = phase.name not in self._heldout
                if due and self.step == span.last_step:
                    self._evaluate(phase)
        finally:
            self._progress.close()

    def evaluate(self) -> dict[str, Any]:
        """Evaluates the current weights at the current phase's length."""
        index = phase_arithmetic.phase_at(max(self.step - 1, 0), self._phases)
        return self._heldout_results(self._phases[index or 0])

    def close(self) -> None:
        """Leaves the folder to other processes."""
        self._dir.release()

    def write_summary(self, command: str) -> dict[str, Any]:
        """Writes `summary.json` of a complete run, unless it is there.

        Args:
          command: What trained it, for the record.

        Returns:
          Its contents.
        """
        written = summary_lib.read_json(self._dir.summary, None)
        if written is not None:
            return written
        phases = self.results()
        result = {
            "unigram_loss": phases[-1]["unigram_loss"],
            "phases": phases,
            "seconds": MetricsLog(self._dir.metrics, self.step).seconds,
            "versions": summary_lib.versions(),
            "command": command,
        }
        summary_lib.write_json(self._dir.summary, result)
        return result

    def results(self) -> list[dict[str, Any]]:
        """Returns the held-out results of every phase."""
        return [
            {
                "name": phase.name,
                "seq_length": phase.seq_length,
                "global_batch_size": phase.global_batch_size,
                "steps": phase.train_steps,
                **self._heldout[phase.name],
            }
            for phase in self._phases
        ]

    def _plan_batches(self, say) -> list[phase_arithmetic.BatchPlan]:
        replicas = self._strategy.num_replicas_in_sync
        plans = []
        for phase in self._phases:
            dataset = self._data.manifest.dataset(phase.seq_length)
            train = dataset.splits["train"]
            try:
                plan = phase_arithmetic.plan_batch(
                    phase.global_batch_size, replicas, phase.micro_batch_size
                )
                phase_arithmetic.examples_per_lane(
                    phase.global_batch_size, len(train.shards)
                )
                phase_arithmetic.plan_batch(
                    self._config.trainer.eval_batch_size, replicas, None
                )
            except ValueError as e:
                raise ConfigError(f"Phase {phase.name!r}: {e}") from e
            plans.append(plan)
            steps = phase.train_steps
            epochs = steps * phase.global_batch_size / train.examples
            say(
                f"{phase.name}: length {phase.seq_length}, {plan}; {steps} "
                f"steps = {epochs:.2g} epochs of {train.examples} sequences; "
                f"learning rate {phase.learning_rate:g} after "
                f"{phase.warmup_steps} warm-up steps."
            )
        return plans

    def _train_phase(self, span: phase_arithmetic.Span) -> None:
        phase, plan = self._phases[span.index], self._plans[span.index]
        first_step = self.step - span.first_step
        self._phase, self._span = phase, span
        dataset = self._strategy.distribute_datasets_from_function(
            lambda context: pipeline.train_dataset(
                self._data, self._config, span.index, first_step, plan, context
            )
        )
        self._trainer.start_phase(dataset, phase.global_batch_size, span.index)
        self._loop_started, self._loop_step = time.monotonic(), self.step
        with _orbit_is_quiet():
            self.controller.train(steps=span.last_step)

    def _after_loop(self, output: dict[str, tf.Tensor]) -> None:
        now, step, phase = time.monotonic(), self.step, self._phase
        elapsed, steps = now - self._loop_started, step - self._loop_step
        self._loop_started, self._loop_step = now, step
        self._log.seconds += elapsed
        rate = float(self._schedule(step - 1))
        output["learning_rate"] = rate
        in_phase = step - self._span.first_step
        line = {
            "step": step,
            "phase": phase.name,
            **{k: float(v) for k, v in output.items()},
            "examples": self._span.first_example
            + in_phase * phase.global_batch_size,
            "seconds": round(self._log.seconds, 3),
        }
        self._log.write(line)
        sequences = steps * phase.global_batch_size / elapsed
        self._progress.update(
            line,
            sequences,
            self._tokens_left(step) / (sequences * phase.seq_length),
            step == self._span.last_step,
        )

    def _tokens_left(self, step: int) -> int:
        return sum(
            (span.last_step - max(step, span.first_step))
            * phase.global_batch_size
            * phase.seq_length
            for phase, span in zip(self._phases, self._spans, strict=True)
            if step < span.last_step
        )

    def _evaluate(self, phase) -> None:
        self._heldout[phase.name] = results = self._heldout_results(phase)
        summary_lib.write_json(self._dir.heldout, self._heldout)
        self._progress.message(
            f"{phase.name}  held-out ({results['examples']} sequences): MLM "
            f"loss {results['mlm_loss']:.3f} (unigram "
            f"{results['unigram_loss']:.3f}), MLM acc "
            f"{results['mlm_accuracy']:.1%}, NSP acc "
            f"{results['nsp_accuracy']:.1%}"
        )

    def _heldout_results(self, phase) -> dict[str, Any]:
        batch = self._config.trainer.eval_batch_size
        dataset = pipeline.eval_dataset(self._data, self._config, phase, batch)
        self._evaluator.start(
            self._strategy.experimental_distribute_dataset(dataset)
        )
        with _orbit_is_quiet():
            output = self.controller.evaluate(steps=-1)
        return {
            name: np.asarray(value).item() for name, value in output.items()
        }


def _orbit_is_quiet():
    """Keeps orbit's own lines out of the progress.

    It prints what it also logs; the log keeps them.
    """
    return contextlib.redirect_stdout(io.StringIO())
