"""What the README promises stands in the tree."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_tree_has_every_file_once_in_the_readme():
    block = README.split("## The tree")[1].split("```")[1]
    named, folder = set(), ""
    for line in block.strip().splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
            named.add(name)
        else:
            named.add(folder + name)
    for name in named:
        assert (ROOT / name).exists(), name
    for package in ("lamb_tf", "bert_pretrain"):
        for path in (ROOT / package).iterdir():
            if path.suffix == ".py" and path.stem != "__init__":
                assert f"{package}/{path.name}" in named, path


def test_links_and_recipes_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    for recipe in re.findall(r"configs/\w+\.yaml", README):
        assert (ROOT / recipe).exists(), recipe


def test_the_compile_example_runs_as_pasted():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    exec(example, scope)  # Our own README.
    assert int(scope["model"].optimizer.iterations) == 40
