"""Defines the blocks that make up a shown result. Terminals, pages, notebooks and Markdown render the same blocks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

NONE = "\N{EN DASH}"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and how the text is shown."""

    text: str
    small: str = ""
    """Second, smaller line of the cell, such as a standard deviation or an interval."""
    mark: str = ""
    """Mark after the text, such as `*`. Pages show the mark as a superscript."""
    strong: bool = False
    """Whether the text is bold. Plain text cannot show this, so the note of a table must not rely on it."""
    shade: float | None = None
    """Darkness of the cell in a heatmap, from 0 to 1. Terminals do not show the darkness."""


@dataclass(frozen=True)
class Table:
    """A table, as rows of cells. The first cell of a row is the row's name."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""
    words: bool = False
    """Whether the cells contain words rather than numbers. Words are aligned to the left."""
    shades: str = ""
    """Meaning of the cells' shades. Renderers that show shades add this text to the table's note."""


def joined_names(names: Sequence[str]) -> str:
    """Joins names with commas, and the last one with `and`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@dataclass(frozen=True)
class FindingBlock:
    """One sentence of a verdict, or one warning."""

    head: str
    text: str
    tone: str = "plain"
    """Tone of the finding: `better`, `worse`, `equal`, `open` (undecided), `warning` or `plain`."""

    @property
    def sentence(self) -> str:
        """Head and text of the finding as one sentence."""
        return f"{self.head}: {self.text}" if self.head else self.text


@dataclass(frozen=True)
class Findings:
    """A list of findings, such as the sentences of a verdict."""

    kind: ClassVar[str] = "findings"
    items: Sequence[FindingBlock]


@dataclass(frozen=True)
class TextBlock:
    """A paragraph of one or more sentences."""

    kind: ClassVar[str] = "text"
    text: str
    is_summary: bool = False
    """Whether the paragraph sums up the result. Such paragraphs come first and are emphasised."""
    is_verdict: bool = False
    """Whether terminals show the paragraph again below the details, because the first lines may have scrolled away."""


@dataclass(frozen=True)
class Drawing:
    """A drawing whose SVG is only made when a page shows the drawing."""

    draw: Callable[[], str]
    """Function that returns the SVG, in the colours of the page's style sheet."""
    about: str
    """Description of the drawing for readers who cannot see it."""

    def __iter__(self) -> Iterator[str]:
        """Makes the SVG, and yields the SVG and the description."""
        return iter((self.draw(), self.about))


@dataclass(frozen=True)
class Figures:
    """Drawings that pages show side by side. Markdown and terminals leave them out."""

    kind: ClassVar[str] = "figures"
    drawings: Sequence[tuple[str, str] | Drawing]
    """The drawings. Each is a `Drawing`, or a pair: SVG in the colours of the page's style sheet, and a description."""
    legend: Sequence[tuple[str, int]] = ()
    """Entries of the legend, as pairs: the name of a series, and the number of its colour."""
    wide: bool = False
    """Whether the block has a single drawing that keeps its full width. On narrow screens, the drawing scrolls
    sideways."""


@dataclass(frozen=True)
class Folded:
    """Blocks that are hidden behind a title until the reader opens them."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: "Sequence[Block]"


Block: TypeAlias = Table | Findings | TextBlock | Figures | Folded


def summary(*sentences: str) -> list[Block]:
    """Returns blocks with the sentences that a result begins with, one paragraph per sentence.

    Empty sentences are left out.
    """
    return [TextBlock(sentence, is_summary=True) for sentence in sentences if sentence]


def first_sentence(blocks: Sequence[Block]) -> str:
    """Returns the first sentence of a summary or the first finding among the blocks of a result, or an empty text."""
    for block in blocks:
        if isinstance(block, TextBlock) and block.is_summary:
            return block.text
        if isinstance(block, Findings) and block.items:
            return f"{block.items[0].head}: {block.items[0].text}"
    return ""


def shown_by(result: Any, record: Any) -> list[Block]:
    """Returns the blocks of a stage's result. The list is empty if the result's class has no method `blocks`.

    Args:
        result: the result of the stage, which is a dataclass.
        record: the `adapt.runner.record.Record` of the stage.
    """
    declared = getattr(result, "blocks", None)
    return list(declared(record)) if declared else []


def filled(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks that have content.

    Tables without rows, and folded blocks with nothing but such tables, are left out.
    """
    found: list[Block] = []
    for block in blocks:
        match block:
            case Table():
                is_filled = bool(block.rows)
            case Findings():
                is_filled = bool(block.items)
            case Figures():
                is_filled = bool(block.drawings)
            case Folded():
                block = replace(block, blocks=filled(block.blocks))
                is_filled = bool(block.blocks)
            case TextBlock():
                is_filled = bool(block.text)
        if is_filled:
            found.append(block)
    return found


@dataclass(frozen=True)
class Section:
    """A section of the report: a heading and blocks."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Name of the section for links within the page."""
        return "".join(character if character.isalnum() else "-" for character in self.title.lower())


METRICS = {"macro_f1": "macro-F1", "micro_f1": "micro-F1", "accuracy": "accuracy", "entity_f1": "entity-F1"}
"""Names of metrics in shown results, keyed by their names in configurations."""

TRANSDUCTIVE = " († transductive: pre-training has read the text of dev and test)"
"""Text added to the titles of results of models that were trained on the text of the dev and test splits."""


def formatted(value: Any, form: str) -> str:
    """Formats a value with a format such as `{:.3f}`. None becomes a dash."""
    return NONE if value is None else form.format(value)


def in_points(score: float | None) -> str:
    """Formats a score between 0 and 1 in points (hundredths). None becomes a dash."""
    return NONE if score is None else f"{100 * score:.1f}"


def worded_interval(low: float | None, high: float | None, text: Callable[[float], str], before: str = "") -> str:
    """Formats an interval as `+1.2 to +3.4`, preceded by the text `before`.

    The result is empty if the interval is unknown.
    """
    return "" if low is None or high is None else f"{before}{text(low)} to {text(high)}"


def interval(low: float | None, high: float | None, form: str) -> str:
    """Formats an interval as `1.2 to 3.4`. The result is empty if the interval is unknown."""
    return worded_interval(low, high, lambda value: f"{value:{form}}")


def heldout_note(documents: Mapping[str, int]) -> str:
    """Returns a sentence for a table's note with the number of held-out documents of each text.

    The sentence is empty if there are no texts.
    """
    counts = ", ".join(f"{name} {count:,}" for name, count in documents.items())
    return f" Held-out documents: {counts}." if counts else ""


def estimated(value: float | None, low: float | None, high: float | None, form: str) -> Cell:
    """Makes a cell with a value, and the value's interval on the second line. None becomes a dash."""
    return Cell(NONE) if value is None else Cell(f"{value:{form}}", interval(low, high, form))


def darkness(values: Sequence[float]) -> list[float]:
    """Returns the darkness of heatmap cells: 0 for the highest value, 1 for the lowest. Equal values all get 0."""
    low, high = min(values), max(values)
    return [(high - value) / (high - low) if high > low else 0.0 for value in values]


def heatmap(names: Sequence[str], matrix: Sequence[Sequence[float]], title: str, note: str, is_share: bool) -> Table:
    """Makes a heatmap of a square matrix. High values are dark if they are shares, otherwise low values are dark.

    Args:
        names: names of the rows and columns.
        matrix: values, [names, names].
        title: title of the table.
        note: note below the table.
        is_share: whether the values are shares, shown as percentages.
    """
    flat = darkness([value for row in matrix for value in row])
    rows: list[list[Cell | str]] = []
    for number, (name, values) in enumerate(zip(names, matrix, strict=True)):
        shades = values if is_share else flat[number * len(values) : (number + 1) * len(values)]
        texts = [f"{100 * value:.0f}%" if is_share else f"{value:.2f}" for value in values]
        rows.append([name, *(Cell(text, shade=shade) for text, shade in zip(texts, shades, strict=True))])
    meaning = "Darker cells have higher values." if is_share else "Darker cells have lower values."
    return Table(["", *names], rows, title, note, shades=meaning)
