"""The result of jobs/vocabulary.py."""

from collections.abc import Mapping
from typing import Any

from adapt.console import log
from adapt.runner.record import Record
from adapt.summary.tables import show

SHOWN = 10
"""Broken words of a domain that are printed."""
FIGURES = {
    "fertility": ("pieces a word", "{:.3f}"),
    "fragment_score": ("pieces a distinct word", "{:.3f}"),
    "broken_share": ("broken words", "{:.1%}"),
    "unknown_share": ("unknown words", "{:.2%}"),
    "byte_share": ("byte pieces", "{:.2%}"),
    "length_overhead": ("longer than general", "{:+.1%}"),
}
"""What is shown of each domain: column, and form."""


def show_vocabulary(record: Record) -> None:
    """Tables of how words are broken, of the worst words, and of what more tokens would save."""
    from rich.table import Table

    domains = record.metrics["domains"]
    table = Table()
    for column in ("", "words", *(title for title, _ in FIGURES.values())):
        table.add_column(column)
    for name, words in domains.items():
        shown = ("" if words[key] is None else form.format(words[key]) for key, (_, form) in FIGURES.items())
        table.add_row(name, f"{words['words']:,}", *shown)
    show(table)
    for name, words in domains.items():
        _show_extensions(name, words)
    log(f"picture: {record.path / 'vocabulary.png'}")


def show_extended(record: Record) -> None:
    """What became of a vocabulary, and where the model is."""
    found = record.metrics
    steps = f" and {found['steps']:,} on the way of their merges" if found["steps"] else ""
    log(f"{found['words']:,} words became tokens{steps}: {', '.join(found['first'][:SHOWN])} ...")
    log(
        f"pieces a word of the corpus: {found['fertility_before']:.3f} before, {found['fertility_after']:.3f} now; "
        f"its words are {found['length_saved']:.1%} shorter"
    )
    _show_saved(found, found["parameters_added"])
    if found["left_out"]:
        log(f"{found['left_out']:,} words were left out: other texts would change, or no word has them")
    log(f"model and tokenizer: {record.path}")


def show_taught(record: Record) -> None:
    """What the rows of new tokens learnt, and where the model is."""
    found = record.metrics
    measure = "error of hidden states" if record.what["way"] == "distill" else "loss"
    log(
        f"the rows of {found['tokens']:,} new tokens learnt for {found['steps']:,} steps: "
        f"{measure} {found['before']:.4g} before, {found['after']:.4g} now"
    )
    log(f"model and tokenizer: {record.path}")


def show_trimmed(record: Record) -> None:
    """What is left of a vocabulary, and where the model is."""
    found = record.metrics
    log(
        f"{found['vocabulary']:,} of {found['before']:,} tokens are left ({found['used']:,} of them in the text); "
        f"{found['parameters_saved']:,} parameters fewer"
    )
    _show_saved(found, None)
    log(f"model and tokenizer: {record.path}")


def _show_saved(found: Mapping[str, Any], added: int | None) -> None:
    parameters = f"{added:,} parameters more; " if added is not None else ""
    if (saved := found["compute_saved"]) is not None:
        log(f"{parameters}training on the same text takes {abs(saved):.1%} {'less' if saved >= 0 else 'more'} compute")


def show_begun(record: Record) -> None:
    """What was made from nothing, and where it is."""
    found = record.metrics
    log(f"a tokenizer of {found['vocabulary']:,} tokens, a model of {found['parameters']:,} random parameters")
    log(f"model and tokenizer: {record.path}")


def _show_extensions(name: str, words: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    broken = Table(title=f"{name}: words that cost most pieces")
    for column in ("word", "times", "pieces"):
        broken.add_column(column)
    for each in words["worst"][:SHOWN]:
        broken.add_row(Text(each["word"]), f"{each['count']:,}", Text(" ".join(each["pieces"])))
    show(broken)
    table = Table(title=f"{name}: what more tokens would save")
    for column in ("tokens added", "pieces a word", "shorter by", "compute saved"):
        table.add_column(column)
    for each in words["curve"]:
        compute = "" if each["compute_saved"] is None else f"{each['compute_saved']:.1%}"
        number = f"{each['tokens']:,}" + (" (elbow)" if each["tokens"] == words["elbow"] else "")
        table.add_row(number, f"{each['fertility']:.3f}", f"{each['length_saved']:.1%}", compute)
    show(table)
