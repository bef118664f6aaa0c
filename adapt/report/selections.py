"""Tables of selections: what was taken of a pool, beside random documents and the target."""

import json
from collections.abc import Sequence
from typing import Any

from adapt.report.selection_map import selection_map
from adapt.runner.record import Record
from adapt.show.blocks import NONE, Block, Cell, Folded, Table

COLUMNS = {
    "documents": ("documents", "{:,}"),
    "tokens": ("tokens", "{:,}"),
    "kl": ("KL", "{:.3f}"),
    "auc": ("AUC", "{:.3f}"),
    "shared_words": ("shared words", "{:.0%}"),
    "distinct": ("distinct pairs", "{:.0%}"),
    "distance": ("distance", "{:.2f}"),
    "loss": ("loss", "{:.2f}"),
}
NOTE = (
    "Random documents are of the same pool, and have as many tokens. KL: of the target's hashed n-grams from theirs, "
    "nats a gram; AUC: of a classifier that tells them from the target, .5 if it cannot; distinct: among pairs of "
    "words, in as much text of each; distance: the mean of 1 - cosine over all pairs of 1,000 texts at random (TF-IDF "
    "in 50 dimensions), low where texts are of one kind; loss: of the model that the stage begins with, nats a "
    "predicted token."
)
EXAMPLES_FILE = "examples.json"
OPEN, MOST = 3, 12
"""Maps that are shown at once, and with those that are folded: each takes some 130 KB of the page."""


def selection_blocks(selections: Sequence[tuple[str, Record]]) -> list[Block]:
    """A table of all selections, a map of each, and documents to read.

    Args:
        selections: records of stage `selection`, each with what it is called; one that comes again is shown once.
    """
    selections = list({record.key: (label, record) for label, record in reversed(selections)}.values())[::-1]
    if not selections:
        return []
    rows: list[list[Cell | str]] = []
    for label, record in selections:
        for name in ("selection", "random", "target"):
            if figures := record.metrics.get(name):
                shown = label if name == "selection" else f"{label}, {name}"
                rows.append([shown, *(_figure(figures[key], form) for key, (_, form) in COLUMNS.items())])
    header = ["text", *(title for title, _ in COLUMNS.values())]
    chosen = [(label, record) for label, record in selections if record.metrics.get("random")][:MOST]
    maps = [drawn for label, record in chosen if (drawn := selection_map(label, record))]
    read = [table for label, record in selections if (table := _examples(label, record))]
    return [
        Table(header, rows, "Selections", NOTE),
        *maps[:OPEN],
        *([Folded("More maps", maps[OPEN:])] if maps[OPEN:] else []),
        Folded("Documents that were selected, to be read", read),
    ]


def _figure(value: Any, form: str) -> str:
    return NONE if value is None else form.format(value)


def _examples(label: str, record: Record) -> Table | None:
    """Documents that were taken, each beside the text of the target that it is most like."""
    try:
        found = json.loads((record.path / EXAMPLES_FILE).read_text(encoding="utf-8"))
    except OSError:
        return None
    rows: list[list[Cell | str]] = [
        [f"{example['rank']}", f"{example['score']:.3f}", example["text"], example["nearest"]] for example in found
    ]
    return Table(["rank", "score", "document", "most alike of the target"], rows, label, words=True)
