"""How a tokenizer breaks the words of domains, and what more tokens would save: tables and curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapt.runner.record import Record
from adapt.show.blocks import NONE, Block, Cell, Figures, Folded, Table
from adapt.show.drawing import canvas, color, style, svg

COLUMNS = {
    "fertility": ("pieces a word", "{:.3f}"),
    "fragment_score": ("pieces a distinct word", "{:.3f}"),
    "broken_share": ("broken words", "{:.1%}"),
    "unknown_share": ("unknown words", "{:.2%}"),
    "byte_share": ("byte pieces", "{:.2%}"),
    "length_overhead": ("longer than general", "{:+.1%}"),
}
NOTE = (
    "A word has a letter or a digit and ends where the tokenizer's words do. Byte pieces are no whole characters. "
    "Longer than general: pieces a byte, against general text. Shorter by: share of the pieces that the tokens at the "
    "elbow of the curve would save; compute: of the FLOPs of training on the same text."
)
CHANGES: dict[str, tuple[str, dict[str, tuple[str, str]], str]] = {
    "extend": (
        "Extended",
        {
            "words": ("words", "{:,}"),
            "steps": ("steps", "{:,}"),
            "tokens": ("vocabulary", "{:,}"),
            "new rows": ("init", "{}"),
            "pieces a word before": ("fertility_before", "{:.3f}"),
            "now": ("fertility_after", "{:.3f}"),
            "shorter by": ("length_saved", "{:.1%}"),
            "parameters added": ("parameters_added", "{:,}"),
            "compute saved": ("compute_saved", "{:.1%}"),
        },
        "Steps are tokens on the way of merges. Compute: of the FLOPs of training on the same text.",
    ),
    "taught": (
        "What new rows learnt",
        {
            "tokens": ("tokens", "{:,}"),
            "steps": ("steps", "{:,}"),
            "before": ("before", "{:.4g}"),
            "now": ("after", "{:.4g}"),
        },
        "Of `distill` the mean squared difference of hidden states, of a warm-up the loss.",
    ),
    "trim": (
        "Trimmed",
        {
            "tokens before": ("before", "{:,}"),
            "now": ("vocabulary", "{:,}"),
            "in the text": ("used", "{:,}"),
            "parameters saved": ("parameters_saved", "{:,}"),
            "compute saved": ("compute_saved", "{:.1%}"),
        },
        "Compute: of the FLOPs of training on the same text.",
    ),
    "scratch": (
        "From scratch",
        {"tokens": ("vocabulary", "{:,}"), "parameters": ("parameters", "{:,}")},
        "A tokenizer of the corpus, and random weights.",
    ),
}
"""For each kind of stage that changes a vocabulary its title, and for each column the metric and its form."""
WIDTH, HEIGHT = 6.4, 4.0


def vocabulary_blocks(analyzed: Sequence[tuple[str, Record]]) -> list[Block]:
    """A table for each record of stage `vocabulary`, its curves, and the words that cost most.

    Args:
        analyzed: the records, each with what it is called; one that comes again is shown once.
    """
    blocks: list[Block] = []
    for label, record in {record.key: (label, record) for label, record in analyzed}.values():
        domains = record.metrics["domains"]
        header = ["domain", *(title for title, _ in COLUMNS.values()), "elbow", "shorter by", "compute saved"]
        blocks.append(Table(header, [_row(name, words) for name, words in domains.items()], f"Words: {label}", NOTE))
        names = [(name, number) for number, name in enumerate(domains)]
        blocks.append(
            Figures([(_curves(label, domains), f"{label}: pieces a word by tokens added; dot: elbow.")], names)
        )
        worst = [_worst(name, words) for name, words in domains.items()]
        blocks.append(Folded(f"Words that cost most pieces: {label}", worst))
    return blocks


def changed_blocks(changed: Sequence[tuple[str, Record]]) -> list[Block]:
    """What became of vocabularies: a table for each kind of change that there was.

    Args:
        changed: records of stages of CHANGES, each with what it is called; others are left out.
    """
    records = {record.key: (label, record) for label, record in changed if record.stage in CHANGES}
    blocks: list[Block] = []
    for stage, (title, columns, note) in CHANGES.items():
        rows = [
            [label, *(_figure(record.metrics.get(key), form) for key, form in columns.values())]
            for label, record in records.values()
            if record.stage == stage
        ]
        if rows:
            blocks.append(Table(["model", *columns], rows, title, note))
    return blocks


def _figure(value: Any, form: str) -> str:
    return NONE if value is None else form.format(value)


def _row(name: str, words: Mapping[str, Any]) -> list[Cell | str]:
    figures = [NONE if words[key] is None else form.format(words[key]) for key, (_, form) in COLUMNS.items()]
    best = next(each for each in words["curve"] if each["tokens"] == words["elbow"])
    compute = NONE if best["compute_saved"] is None else f"{best['compute_saved']:.1%}"
    return [name, *figures, f"{words['elbow']:,}", f"{best['length_saved']:.1%}", compute]


def _curves(label: str, domains: Mapping[str, Mapping[str, Any]]) -> str:
    with style():
        figure, axes = canvas(WIDTH, HEIGHT)
        for number, words in enumerate(domains.values()):
            axes.plot(
                [each["tokens"] for each in words["curve"]],
                [each["fertility"] for each in words["curve"]],
                color=color(number),
            )
            for each in words["curve"]:
                if each["tokens"] == words["elbow"]:
                    axes.plot([each["tokens"]], [each["fertility"]], "o", color=color(number))
        axes.set_xscale("symlog", linthresh=10)
        axes.set(xlabel="tokens added", ylabel="pieces a word")
        return svg(figure, f"{label}-vocabulary")


def _worst(name: str, words: Mapping[str, Any]) -> Table:
    rows: list[list[Cell | str]] = [
        [each["word"], f"{each['count']:,}", " ".join(each["pieces"])] for each in words["worst"]
    ]
    return Table(["word", "times", "pieces"], rows, name, words=True)
