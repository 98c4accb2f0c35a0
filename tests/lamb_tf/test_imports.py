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
    "update": {"layerwise", "rules"},
    "optimizer": {
        "arguments",
        "exclusions",
        "layerwise",
        "layout",
        "rules",
        "schedules",
        "update",
    },
    "lamb": {"arguments", "layerwise", "optimizer", "rules"},
    "lars": {"arguments", "layerwise", "optimizer", "rules"},
    "keras": {"arguments", "exclusions", "lamb", "lars", "update"},
    "tf_keras": {"arguments", "lamb", "lars", "update"},
    "matching": set(),
    "peer_configs": set(),
    "peer_states": set(),
    "peer_checkpoints": {"peer_states"},
    "peer_h5": {"peer_states"},
    "transfer": {"peer_states"},
    "callbacks": {"arguments", "optimizer", "update"},
    "importers": {
        "exclusions",
        "matching",
        "peer_checkpoints",
        "peer_configs",
        "peer_h5",
        "transfer",
    },
    "__init__": set(),
}


def imports_of(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=str)
def test_direction(path):
    names = imports_of(path)
    roots = {name.split(".")[0] for name in names}
    assert not roots & {"bert_pretrain", "official", "tests", "benchmarks"}
    ours = {n.split(".")[1] for n in names if n.startswith("lamb_tf.")}
    assert ours <= DIRECTION[path.stem]


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
