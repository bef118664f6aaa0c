"""The result of a training: losses before and after, examples, cost."""

import json
from pathlib import Path
from typing import Any

from adapt.console import duration, log
from adapt.runner.record import Record
from adapt.summary.scored import marked
from adapt.summary.tables import show

_NOTE = "loss on held-out text, nats a predicted token, with 95% intervals; lower is better"


def show_summary(record: Record) -> None:
    """The result of an export: losses before and after, examples of guessed words, cost, and where the model is."""
    from rich.markup import escape
    from rich.table import Table

    metrics = record.metrics
    table = Table(title=f"{escape(record.name)}: {_NOTE}{marked(metrics)}", title_justify="left")
    for column in ("text", "before", "after", "change"):
        table.add_column(column)
    for text, prefix in (("domain, held out", "heldout"), ("general", "general")):
        if metrics.get(f"{prefix}_loss_before") is not None:
            losses = (_interval(metrics, f"{prefix}_loss_{column}") for column in ("before", "after", "change"))
            table.add_row(text, *losses)
    show(table)
    if metrics.get("heldout_loss_before") is None:
        log(
            "the loss on the domain was not measured: fewer than two documents are held out (corpus.heldout_fraction;"
            " of TAPT, the text of dev)"
        )
    for text, prefix in (("domain", "heldout"), ("general", "general")):
        per_byte = [metrics.get(f"{prefix}_loss_per_byte_{when}") for when in ("before", "after")]
        if None not in per_byte:
            log(f"{text}: {per_byte[0]:.4f} nats a byte before, {per_byte[1]:.4f} after")
    _show_examples(record)
    log(
        f"{metrics['steps']} steps, {metrics['tokens']:,} tokens, {metrics['tokens_per_s']:,.0f} tokens/s, "
        f"data wait {metrics['data_wait_share']:.1%}, {duration(metrics['device_seconds'])} of device time"
        + _more(record)
    )
    log(f"model: {record.path}")


def _more(record: Record) -> str:
    """Utilization, memory and price, as far as they were measured or are known."""
    mfu, peak = (record.metrics.get(name) for name in ("mfu", "peak_memory_bytes"))
    cost = record.cost.get("cost")
    parts = (
        "" if mfu is None else f", MFU {mfu:.0%}",
        "" if peak is None else f", at most {peak / 2**30:.1f} GiB a device",
        "" if cost is None else f", cost {cost:,.2f}",
    )
    return "".join(parts)


def _show_examples(record: Record) -> None:
    from rich.table import Table
    from rich.text import Text

    before, after = (_examples(record, name) for name in ("before", "after"))
    if not before:
        return
    table = Table(
        title="a held-out sentence with one word hidden: the word, and the model's first guesses", title_justify="left"
    )
    for column, ratio in (("sentence", 5), ("word", 2), ("before", 3), ("after", 3)):
        table.add_column(column, ratio=ratio)
    for old, new in zip(before, after, strict=True):
        table.add_row(Text(old["text"]), Text(old["answer"]), _guesses(old), _guesses(new))
    show(table)


def _examples(record: Record, evaluation: str) -> list[dict[str, Any]]:
    file = Path(record.inputs[evaluation]["path"]) / "examples.json"
    content: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return content


def _guesses(example: dict[str, Any]) -> Any:
    from rich.text import Text

    words = (Text(word, "bold green" if word == example["answer"] else "") for word, _ in example["guesses"])
    return Text(", ").join(words)


def _interval(metrics: dict[str, Any], name: str) -> str:
    form = "+.3f" if name.endswith("change") else ".3f"
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    spread = f" ({low:{form}} to {high:{form}})" if low is not None and high is not None else ""
    return f"{metrics[name]:{form}}{spread}"
