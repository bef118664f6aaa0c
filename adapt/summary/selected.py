"""The result of jobs/select.py."""

import json
from typing import Any

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show

COLUMNS = {
    "documents": ("documents", "{:,}"),
    "tokens": ("tokens", "{:,}"),
    "kl": ("KL of n-grams [nats]", "{:.3f}"),
    "auc": ("AUC", "{:.3f}"),
    "shared_words": ("shared words", "{:.1%}"),
    "distinct": ("distinct word pairs", "{:.1%}"),
    "distance": ("mean distance", "{:.3f}"),
    "loss": ("loss [nats]", "{:.3f}"),
}
SHOWN, WIDTH = 5, 100


def show_selection(record: Record) -> None:
    """What was taken beside random documents and the target, and the best of it to read."""
    from rich.table import Table
    from rich.text import Text

    found = record.metrics
    table = Table()
    for column in ("", *(title for title, _ in COLUMNS.values())):
        table.add_column(column)
    for name in ("selection", "random", "target"):
        if figures := found.get(name):
            label = found["way"] if name == "selection" else name
            table.add_row(label, *(_shown(figures[key], form) for key, (_, form) in COLUMNS.items()))
    show(table)
    if found["kl_reduction"] is not None:
        log(f"KL reduction against random documents: {found['kl_reduction']:+.3f} nats a gram; AUC .5: not to be told")
    examples = Table(title="the best, and what of the target is most like it")
    for column in ("rank", "score", "document", "target"):
        examples.add_column(column)
    for example in json.loads((record.path / "examples.json").read_text(encoding="utf-8"))[:SHOWN]:
        texts = (Text(_line(example[name])) for name in ("text", "nearest"))
        examples.add_row(str(example["rank"]), f"{example['score']:.3f}", *texts)
    show(examples)
    log(f"chosen: {record.path / 'texts.jsonl'}; to read: {record.path / 'examples.json'}")


def _shown(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
