"""`model_dir`: one run of one recipe, and the check that it stays so."""

import fcntl
import json
import os
from typing import Any

import tensorflow as tf

from bert_pretrain import config as config_lib
from bert_pretrain import files
from bert_pretrain.config import Config, ConfigError
from bert_pretrain.reporting.summary import read_json, write_json

# Keys that change where or how often something is done, not what is computed.
_FREE = (
    "task.data.input_path",
    "trainer.steps_per_loop",
    "trainer.checkpoint_interval",
    "trainer.max_to_keep",
    "trainer.eval_batch_size",
)


class CheckpointManager(tf.train.CheckpointManager):
    """Saves; a failure says what it was and what is still there."""

    def save(self, *args, **kwargs):
        """As the base class.

        Raises:
          OSError: If the checkpoint could not be written, for instance on a
            full disk. Earlier checkpoints stay as they were.
        """
        try:
            return super().save(*args, **kwargs)
        except tf.errors.OpError as e:
            reason = e.message.splitlines()[0]
            raise OSError(
                f"A checkpoint could not be written to {self.directory} "
                f"({reason}); free space or permissions are the usual cause. "
                f"The last one is {self.latest_checkpoint}"
            ) from e


class ModelDir:
    """Paths inside a `model_dir`."""

    def __init__(self, path: str):
        self.path = path
        self.params = files.join(path, "params.yaml")
        self.data = files.join(path, "data.json")
        self.metrics = files.join(path, "metrics.jsonl")
        self.heldout = files.join(path, "heldout.json")
        self.summary = files.join(path, "summary.json")
        self.tensorboard = files.join(path, "tensorboard")
        self._lock_file = None

    def claim(self, config: Config, data_identity: dict[str, Any]) -> None:
        """Makes the folder this recipe's, or checks that it is.

        A folder without a checkpoint has trained nothing that counts: the
        recipe may still be corrected.

        Args:
          config: The recipe about to run.
          data_identity: `PreparedData.identity()`.

        Raises:
          ConfigError: If the folder belongs to another recipe or other data,
            is in use, or cannot be written.
        """
        data_identity = _json_form(data_identity)
        claimed = files.size(self.params) is not None
        if self.has_checkpoint and not claimed:
            raise ConfigError(
                f"--model_dir={self.path} holds checkpoints but no "
                "params.yaml: another program wrote them. Choose a new folder."
            )
        if self.has_checkpoint:
            self._compare(config, data_identity)
        try:
            self._lock()
            self._remove_partial_checkpoints()
            if not self.has_checkpoint:
                write_json(self.data, data_identity)
                text = config_lib.to_yaml(config)
                files.write_bytes(self.params, text.encode())
        except OSError as e:
            raise ConfigError(
                f"--model_dir={self.path} cannot be written: {e.strerror or e}."
            ) from e

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was completed here."""
        return files.size(files.join(self.path, "checkpoint")) is not None

    def release(self) -> None:
        """Lets another process claim the folder; the process's end does too."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _lock(self) -> None:
        """Keeps a second process on this machine out."""
        if files.is_remote(self.path):
            return
        os.makedirs(self.path, exist_ok=True)
        self._lock_file = open(files.join(self.path, ".lock"), "w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise ConfigError(
                f"--model_dir={self.path} is in use: another process trains "
                "there. Wait for it, or choose another folder."
            ) from e

    def _remove_partial_checkpoints(self) -> None:
        """Frees the space of checkpoints whose writing was cut short."""
        for partial in tf.io.gfile.glob(files.join(self.path, "ckpt-*_temp")):
            tf.io.gfile.rmtree(partial)

    def _compare(self, config: Config, data_identity: dict[str, Any]) -> None:
        before = _recipe(config_lib.load(self.params))
        now = _recipe(config)
        different = [
            f"  {key}: {before.get(key)!r} there, {now.get(key)!r} now"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ]
        if different:
            raise ConfigError(
                f"--model_dir={self.path} is a run of another recipe:\n"
                + "\n".join(different)
                + "\nChoose a new --model_dir, or the recipe in "
                f"{self.params}."
            )
        if read_json(self.data, None) != data_identity:
            raise ConfigError(
                f"--model_dir={self.path} was trained on other data (see "
                f"{self.data}): its tokenizer or shards differ from those in "
                "task.data.input_path. Name the folder it began with, or a "
                "new --model_dir."
            )


def _recipe(config: Config) -> dict[str, Any]:
    """Flattens what determines the result to `key.path: value`."""
    flat: dict[str, Any] = {}

    def walk(value, path):
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for i, item in enumerate(value):
                walk(item, f"{path}[{i}]")
        else:
            flat[path] = value

    walk(config_lib.as_dict(config), "")
    return {
        key: value
        for key, value in flat.items()
        if key not in _FREE
        and not key.endswith(".micro_batch_size")
        # Replicas and devices compute the same; the precision does not.
        and (
            not key.startswith("runtime.")
            or key == "runtime.mixed_precision_dtype"
        )
    }


def _json_form(value: dict[str, Any]) -> dict[str, Any]:
    """As it reads after a round trip: JSON's keys are strings."""
    return json.loads(json.dumps(value))
