"""What the documents show runs as pasted, and what they name exists."""

import doctest
import importlib
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import lamb_tf

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block for reading only says more than the language: "python not run".
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MODULES = [m.name for m in pkgutil.iter_modules(lamb_tf.__path__)]
# Public, and so each with an example of its own.
SHOWN = {
    "callbacks.TrustRatioLogger",
    "lamb.Lamb",
    "lars.Lars",
    "recipes.bert",
    "recipes.imagenet",
    "schedules.MixedBatch",
    "schedules.WarmupPolynomialDecay",
}
RUN = """
import json, sys, traceback
failed = False
for name, code in json.load(sys.stdin):
    try:
        # Each on its own: a reader pastes one.
        exec(compile(code, name, "exec"), {})
    except Exception:
        failed = True
        traceback.print_exc()
    if "keras" in sys.modules:
        sys.modules["keras"].mixed_precision.set_dtype_policy("float32")
sys.exit(failed)
"""


def blocks(page):
    return BLOCK.findall(page.read_text())


def test_every_block_runs_as_pasted(tmp_path):
    named = [
        (f"{page.name}, block {number}", code)
        for page in PAGES
        for number, code in enumerate(blocks(page), 1)
    ]
    # One process: TensorFlow takes longer to import than most to run.
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(named),
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": str(ROOT),
        },
        # What an example writes, it writes here.
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"lamb_tf.{name}")
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, name)
    shown = {test.name for test in tests if test.examples}
    assert {s for s in SHOWN if s.split(".")[0] == name} <= shown
    runner = doctest.DocTestRunner(verbose=False)
    report = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def test_named_tests_exist():
    source = "".join(p.read_text() for p in (ROOT / "tests").rglob("*.py"))
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", page.read_text()):
            assert f"def {name}(" in source, f"{page.name} names {name}"


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_named_files_exist():
    for page in PAGES:
        named = re.findall(
            r"`((?:lamb_tf|bert_pretrain|benchmarks|tests|docs|configs)/"
            r"[\w/.-]+\.\w+)`",
            page.read_text(),
        )
        for name in named:
            assert (ROOT / name).exists(), f"{page.name}: {name}"
