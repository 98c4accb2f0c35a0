"""`summary.json` and the table at the end of a run."""

import importlib.metadata
import json
import platform
from typing import Any

from bert_pretrain import files

_PACKAGES = (
    "tensorflow",
    "tf-keras",
    "tf-models-official",
    "tensorflow-text",
    "numpy",
)


def write_json(path: str, value: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one."""
    files.write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: str, default: Any) -> Any:
    """Reads JSON; `default` where there is no file."""
    if files.size(path) is None:
        return default
    return json.loads(files.read_bytes(path))


def versions() -> dict[str, str]:
    """Versions of everything a result depends on."""
    import bert_pretrain
    import lamb_tf

    return {
        "python": platform.python_version(),
        "bert_pretrain": bert_pretrain.__version__,
        "lamb_tf": lamb_tf.__version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def table(phases: list[dict[str, Any]]) -> str:
    """Formats the held-out results, a line per phase.

    Args:
      phases: The `phases` of `summary.json`.
    """
    head = (
        "after",
        "length",
        "batch",
        "steps",
        "MLM loss",
        "unigram",
        "below it",
        "MLM acc",
        "NSP loss",
        "NSP acc",
    )
    rows = [
        (
            p["name"],
            str(p["seq_length"]),
            str(p["global_batch_size"]),
            str(p["steps"]),
            f"{p['mlm_loss']:.3f}",
            f"{p['unigram_loss']:.3f}",
            f"{p['unigram_loss'] - p['mlm_loss']:.3f}",
            f"{p['mlm_accuracy']:.1%}",
            f"{p['nsp_loss']:.3f}",
            f"{p['nsp_accuracy']:.1%}",
        )
        for p in phases
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells):
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join(
            [first[0].ljust(first[1]), *(c.rjust(w) for c, w in rest)]
        )

    return "\n".join(
        [line(head), "  ".join("-" * w for w in widths), *map(line, rows)]
    )
