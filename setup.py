"""Package metadata; tool settings stand in pyproject.toml."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent


def version(package: str) -> str:
    """Reads a package's version without importing it."""
    text = (HERE / package / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)[1]


# The optimizer needs TensorFlow alone. Everything else is an extra; the
# README says what each dependency is for.
EXTRAS = {
    "tf_keras": ["tf_keras>=2.20,<2.21"],
    "bert": [
        "tf-models-official==2.20.0",
        "tensorflow-text>=2.20,<2.21",
        "tf_keras>=2.20,<2.21",
        "absl-py",
        "PyYAML",
        "sentencex>=1.0.32,<2",
        "tqdm",
        # tensorflow-hub, which tf-models imports, needs pkg_resources.
        "setuptools<81",
    ],
    # The tests take the same steps as optax, under jax.
    "test": ["pytest", "ruff", "jax>=0.8,<0.11", "optax>=0.2.6,<0.3"],
    # The peers that benchmarks/ times beside ours.
    # Of jax any version will do whose numpy and ml_dtypes are those of
    # TensorFlow. timm has the PyTorch LAMB that computes the paper's
    # update; PyPI's torch brings CUDA along, gigabytes of it, also where
    # there is no GPU. Without either the benchmark says so and goes on.
    "bench": [
        "tf-models-official==2.20.0",
        "tf_keras>=2.20,<2.21",
        "jax>=0.8,<0.11",
        "optax>=0.2.6,<0.3",
        "timm>=1.0.31,<2",
        "torch>=2.13,<3",
        # tensorflow-hub, which tf-models imports, needs pkg_resources.
        "setuptools<81",
    ],
}

setuptools.setup(
    name="lamb-tf",
    version=version("lamb_tf"),
    description=(
        "LAMB for Keras, and mixed-batch BERT pretraining from raw text"
    ),
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=setuptools.find_packages(include=["lamb_tf*", "bert_pretrain*"]),
    python_requires=">=3.11,<3.12",
    install_requires=["tensorflow>=2.20,<2.21"],
    extras_require=EXTRAS,
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
