"""Pretrains BERT with LAMB, phase after phase, in one run.

    python -m bert_pretrain.pretrain --config_file=configs/demo_cpu.yaml \
        --model_dir=demo/model

Run it again after any interruption: it resumes at the last checkpoint.
"""

import contextlib
import json
import os
import shlex
import signal
import sys

# Before TensorFlow is imported: its C++ side reports a missing CUDA driver as
# an error on every CPU. What goes wrong reaches Python as an exception.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging

from bert_pretrain import config as config_lib

_CONFIG_FILE = flags.DEFINE_multi_string(
    "config_file", None, "YAML recipe; given twice, the later overrides."
)
_PARAMS_OVERRIDE = flags.DEFINE_string(
    "params_override", None, "YAML, or key.path=value pairs joined by commas."
)
_EXPERIMENT = flags.DEFINE_string(
    "experiment", "bert_lamb/pretrain", "Registered defaults of the recipe."
)
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Checkpoints, metrics and summary of this run."
)
_MODE = flags.DEFINE_enum(
    "mode",
    "train_and_eval",
    ["train_and_eval", "eval"],
    "Train, evaluating on the held-out text after each phase; or evaluate the "
    "last checkpoint.",
)
_TPU = flags.DEFINE_string(
    "tpu", None, "TPU name or address; `local` on a TPU VM."
)
_STRATEGY = flags.DEFINE_string(
    "distribution_strategy", None, "Overrides runtime.distribution_strategy."
)

# Exit codes beside 0, trained to the end.
EXIT_FAILED = 1
EXIT_CANNOT_RUN = 2
EXIT_ALREADY_COMPLETE = 3


def read_config() -> config_lib.Config:
    """Builds the recipe from the flags."""
    from official.core import exp_factory

    from bert_pretrain import experiments  # noqa: F401  Registers itself.

    try:
        defaults = exp_factory.get_exp_config(_EXPERIMENT.value).as_dict()
    except LookupError as e:
        raise config_lib.ConfigError(
            f"--experiment={_EXPERIMENT.value} is not registered; this "
            "package registers bert_lamb/pretrain."
        ) from e
    runtime = {}
    if _TPU.value is not None:
        runtime = {"distribution_strategy": "tpu", "tpu": _TPU.value}
    if _STRATEGY.value is not None:
        runtime["distribution_strategy"] = _STRATEGY.value
    return config_lib.load(
        *_CONFIG_FILE.value,
        defaults=defaults,
        overrides=_PARAMS_OVERRIDE.value,
        flags={"runtime": runtime},
    )


def main(argv: list[str]) -> None:
    """Trains what is left of the recipe and prints the result."""
    if argv[1:]:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    command = shlex.join(
        [os.path.basename(sys.executable), "-m", "bert_pretrain.pretrain"]
        + sys.argv[1:]
    )
    try:
        _check_flags()
        code = pretrain(read_config(), _MODEL_DIR.value, _MODE.value, command)
    except config_lib.ConfigError as e:
        print(f"error: {e}", file=sys.stderr)
        code = EXIT_CANNOT_RUN
    except OSError as e:
        print(f"error: {_explain(e)}", file=sys.stderr)
        code = EXIT_FAILED
    except KeyboardInterrupt:
        print(f"\nInterrupted. {_resume_hint()}", file=sys.stderr)
        code = 128 + signal.SIGINT
    sys.exit(code)


def _check_flags() -> None:
    for flag in (_CONFIG_FILE, _MODEL_DIR):
        if not flag.value:
            raise config_lib.ConfigError(
                f"--{flag.name} is missing. Try --config_file="
                "configs/demo_cpu.yaml --model_dir=demo/model."
            )


def _explain(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}. {_resume_hint()}"


def _resume_hint() -> str:
    return (
        "What was written before stays valid: the same command resumes at "
        f"the last checkpoint in {_MODEL_DIR.value}."
    )


def pretrain(
    config: config_lib.Config, model_dir: str, mode: str, command: str
) -> int:
    """Runs a recipe; what `main` does, for a program.

    Args:
      config: The recipe.
      model_dir: Folder of the run.
      mode: `train_and_eval`, or `eval` of the last checkpoint.
      command: Recorded in `summary.json`.

    Returns:
      The exit code.
    """
    from bert_pretrain.training.run import PretrainRun

    run = PretrainRun(config, model_dir, must_resume=mode == "eval")
    with contextlib.closing(run):
        return _pretrain(run, mode, command)


def _pretrain(run, mode: str, command: str) -> int:
    from bert_pretrain.reporting import summary

    if mode == "eval":
        print(json.dumps(run.evaluate(), indent=2))
        return 0
    complete = run.complete
    if complete:
        print(
            f"Already complete: {run.total_steps} steps in {run.model_dir}. "
            "Nothing was trained. For another run choose a new --model_dir."
        )
    else:
        run.train()
    result = run.write_summary(command)
    print(f"\nHeld-out documents, {result['seconds']:.0f} s of training:\n")
    print(summary.table(result["phases"]))
    return EXIT_ALREADY_COMPLETE if complete else 0


if __name__ == "__main__":
    app.run(main)
