"""YAML into dataclasses, where everything unknown or ill-typed is an error."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

import yaml


class ConfigError(ValueError):
    """A recipe that cannot be run; the message names key, value, remedy."""


def mapping(text: str, source: str) -> dict[str, Any]:
    """Reads YAML that must be a mapping.

    Args:
      text: The YAML.
      source: What it came from, for messages.

    Raises:
      ConfigError: If it is anything else.
    """
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


def overrides(text: str) -> dict[str, Any]:
    """Reads `--params_override`: YAML, or `key.path=value` pairs.

    Raises:
      ConfigError: If it is neither.
    """
    if "=" not in text or ":" in text.split("=", 1)[0]:
        return mapping(text, "--params_override")
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
        try:
            nested: Any = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise ConfigError(
                f"--params_override: {value!r}, the value of {path}, is not "
                f"valid YAML: {e}"
            ) from e
        # Messages write `phases[0]`; both spellings are understood.
        path = path.strip().replace("[", ".").replace("]", "")
        for key in reversed(path.split(".")):
            nested = {key: nested}
        merge(result, nested)
    return result


def merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    """Puts the values of `over` into `base`, key by key.

    Numbers as keys reach into a list: `trainer.phases.0.train_steps=5`. A list
    as a value replaces the old one.

    Raises:
      ConfigError: If a list has no such entry.
    """
    for key, value in over.items():
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, dict) and isinstance(old, list):
            for index, item in value.items():
                if str(index) not in map(str, range(len(old))):
                    raise ConfigError(
                        f"{key}.{index}: {key} has entries 0 to {len(old) - 1}."
                    )
                if not isinstance(item, dict):
                    raise ConfigError(
                        f"{key}.{index}: expected keys, got {item!r}."
                    )
                merge(old[int(index)], item)
        else:
            base[key] = value


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML where keys are words, and a key given twice is an error."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, (str, int)):
                problem = f"{key!r} is no key"
            elif key in seen:
                problem = f"key {key!r} stands twice"
            if problem:
                raise yaml.MarkedYAMLError(
                    problem=problem, problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def build(kind: Any, value: Any, path: str = "") -> Any:
    """Turns plain YAML values into `kind`.

    Args:
      kind: A dataclass, or the type of one of its fields.
      value: Dicts, lists and scalars.
      path: Where the value stands, for messages.

    Raises:
      ConfigError: Naming the key that is unknown or does not fit.
    """
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
        return build(inner, value, path)
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"{path}: expected a list, got {value!r}.")
        return [build(args[0], v, f"{path}[{i}]") for i, v in enumerate(value)]
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


def known_here(key: Any, known: Iterable[str]) -> str:
    """Returns what an error about an unknown key ends with.

    The known key that it may be a typo of, and all of them.
    """
    known = list(known)
    close = difflib.get_close_matches(str(key), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known here: {', '.join(known)}."


def _build_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{path or 'recipe'}: expected keys, got {value!r}.")
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise ConfigError(
                f"Unknown key {_join(path, key)!r}.{known_here(key, hints)}"
            )
    return kind(
        **{k: build(hints[k], v, _join(path, k)) for k, v in value.items()}
    )


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
