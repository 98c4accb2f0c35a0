"""Imports go one way, and arithmetic needs no TensorFlow."""

import ast
import pathlib
import subprocess
import sys

import pytest

import bert_pretrain

PACKAGE = pathlib.Path(bert_pretrain.__file__).parent

# From the ground up; a layer imports none above its own.
LAYERS = (
    ("files", "phases", "random_bits", "strict_yaml"),
    ("recipe_checks", "tokenizer"),
    ("config",),
    ("data",),
    ("input", "modeling", "reporting"),
    ("optimizers", "training"),
    ("experiments", "prepare", "pretrain"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _part(module):
    names = module.split(".")
    return names[1] if names[0] == "bert_pretrain" and len(names) > 1 else None


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.name)
)
def test_nothing_imports_what_is_above_it(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for module in _imports(path):
        part = _part(module)
        if part in LEVEL:
            assert LEVEL[part] <= LEVEL[own], f"{own} imports {module}"


@pytest.mark.parametrize(
    "module", ["config", "phases", "files", "data.manifest"]
)
def test_arithmetic_needs_no_tensorflow(module):
    code = (
        f"import sys, bert_pretrain.{module}; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
