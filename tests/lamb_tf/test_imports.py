"""What imports what, and what an import costs."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

import lamb_tf

PACKAGE = pathlib.Path(lamb_tf.__file__).parent
# Each file and the files of lamb_tf that it may import: one way only.
DIRECTION = {
    "arguments": set(),
    "rules": {"layerwise"},
    "layerwise": set(),
    "layout": set(),
    "exclusions": set(),
    "recipes": {"arguments"},
    "schedules": {"arguments"},
    "update": {"exclusions", "layerwise", "rules"},
    "programs": {"exclusions", "layerwise", "rules", "update"},
    "optimizer": {
        "arguments",
        "exclusions",
        "layerwise",
        "layout",
        "programs",
        "rules",
        "shared_arguments",
        "update",
    },
    "shared_arguments": {"arguments", "schedules"},
    "lamb": {"arguments", "layerwise", "optimizer", "rules"},
    "lars": {"arguments", "layerwise", "optimizer", "rules"},
    "keras": {"arguments", "exclusions", "lamb", "lars", "update"},
    "tf_keras": {"arguments", "lamb", "lars", "update"},
    "callbacks": {"arguments", "optimizer", "update"},
    "importers": {
        "",  # For the optimizer of the Keras in force.
        "exclusions",
        "importers.checkpoints",
        "importers.configs",
        "importers.h5",
        "importers.matching",
        "importers.transfer",
    },
    "importers.matching": set(),
    "importers.configs": set(),
    "importers.states": set(),
    "importers.checkpoints": {"importers.states"},
    "importers.h5": {"importers.states"},
    "importers.transfer": {"importers.states"},
    "": set(),  # lamb_tf/__init__.py
}


def imports_of(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def ours_in(names):
    """Returns the modules of lamb_tf among what is imported."""
    for name in names:
        parts = name.split(".")
        if parts[0] == "lamb_tf":
            prefixes = [".".join(parts[1:n]) for n in range(1, len(parts) + 1)]
            yield [prefix for prefix in prefixes if prefix in DIRECTION][-1]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=str)
def test_direction(path):
    names = imports_of(path)
    roots = {name.split(".")[0] for name in names}
    assert not roots & {"bert_pretrain", "official", "tests", "benchmarks"}
    assert set(ours_in(names)) <= DIRECTION[module_of(path)]


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_cheap():
    loaded = python(
        "import sys, lamb_tf; lamb_tf.recipes.bert(512); lamb_tf.__version__;"
        "print({'tensorflow', 'keras', 'tf_keras'} & set(sys.modules))"
    )
    assert loaded == "set()"


def test_optimizer_of_the_keras_in_force():
    assert issubclass(lamb_tf.LAMB, tf.keras.optimizers.Optimizer)
    legacy = python(
        "import lamb_tf, tensorflow as tf; o = lamb_tf.LAMB();"
        "assert isinstance(o, tf.keras.optimizers.Optimizer);"
        "print(type(o).__module__)",
        TF_USE_LEGACY_KERAS="1",
    )
    assert legacy == "lamb_tf.tf_keras"


def test_keras_3_alone_is_enough():
    python(
        "import sys; sys.modules['tf_keras'] = None\n"
        "import lamb_tf, tensorflow as tf\n"
        "s = lamb_tf.schedules.WarmupPolynomialDecay(1e-3, 1, 9)\n"
        "w = tf.Variable([1.0])\n"
        "lamb_tf.LAMB(s).apply_gradients([(tf.constant([1.0]), w)])\n"
        "lamb_tf.callbacks.TrustRatioLogger('logs')\n"
    )


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'SGD'"):
        lamb_tf.SGD  # noqa: B018
