"""A manifest for people: tables of what was read and what was made."""

from bert_pretrain.data.corpus import problems_text
from bert_pretrain.data.manifest import Manifest


def report(manifest: Manifest) -> str:
    """The tables of sources and examples, and what is wrong with them."""
    sources = [
        "source files bytes documents held-out sentences tokens".split()
    ] + [
        [
            source.name,
            f"{source.files:,}",
            f"{source.bytes:,}",
            f"{source.documents:,}",
            f"{source.heldout_documents:,}",
            f"{source.sentences:,}",
            f"{source.tokens:,}",
        ]
        for source in manifest.sources
    ]
    examples = [
        "length split examples shards dropped truncated tokens padding "
        "random-next".split()
    ]
    notes = []
    for dataset in manifest.datasets.values():
        for name, split in dataset.splits.items():
            examples.append(
                [
                    f"{dataset.seq_length}",
                    name,
                    f"{split.examples:,}",
                    f"{len(split.shards)}",
                    f"{split.dropped_for_even_lanes}",
                    f"{split.truncated:,}",
                    f"{split.tokens:,}",
                    f"{split.padding_share:.1%}",
                    f"{split.random_next_share:.1%}",
                ]
            )
            if split.random_next_share == 0:
                notes.append(
                    f"note: {name}, length {dataset.seq_length}: no random "
                    "next sentences, as the split has a single document"
                )
    problems = [
        f"problems in {source.name}: {problems_text(source.problems)}"
        for source in manifest.sources
    ]
    tokenizer = manifest.tokenizer
    casing = "lower-cased" if tokenizer.lower_case else "cased"
    return "\n".join(
        [
            *_table(sources),
            *problems,
            "",
            *_table(examples),
            *notes,
            f"tokenizer: {tokenizer.vocab_size:,} tokens, {casing}, identity "
            f"{tokenizer.identity[:12]}",
        ]
    )


def _table(rows: list[list[str]]) -> list[str]:
    """Columns as wide as needed; names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
