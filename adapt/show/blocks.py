"""The blocks that results are shown as. Terminals, pages, notebooks and Markdown render the same blocks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

NONE = "\N{EN DASH}"
"""Content of a cell that has nothing to show."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with its text and how it is shown."""

    text: str
    small: str = ""
    """Second, smaller line, such as a standard deviation or an interval."""
    mark: str = ""
    """Mark after the text, such as `*`. Pages raise it."""
    strong: bool = False
    """Whether the cell is bold. Plain text shows no difference, so the note of a table must not depend on it."""
    shade: float | None = None
    """Darkness of the cell in heatmaps, from 0 to 1. Terminals do not show it."""


@dataclass(frozen=True)
class Table:
    """Rows of cells. The first cell of a row is the row's name."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""
    words: bool = False
    """Whether the cells hold words, which are aligned to the left, and not figures."""
    shades: str = ""
    """Meaning of the shades of cells, added to the note by renderers that show shades."""


@dataclass(frozen=True)
class FindingBlock:
    """One sentence of the verdict, or one warning."""

    head: str
    text: str
    tone: str = "plain"
    """`better`, `worse`, `open` (undecided), `warning` or `plain`."""

    @property
    def sentence(self) -> str:
        """Head and text as one sentence."""
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
    """Whether it is a sentence that sums the result up. Such sentences come first and are emphasised."""


@dataclass(frozen=True)
class Drawing:
    """A drawing that is made when a page needs it."""

    draw: Callable[[], str]
    """Makes the SVG, with colours of the page's style sheet."""
    about: str
    """A description, for those who do not see it."""

    def __iter__(self) -> Iterator[str]:
        """Draws the SVG, and yields it and the description."""
        return iter((self.draw(), self.about))


@dataclass(frozen=True)
class Figures:
    """Drawings side by side; Markdown and terminals leave them out."""

    kind: ClassVar[str] = "figures"
    drawings: Sequence[tuple[str, str] | Drawing]
    """For each drawing its SVG, with colours of the page's style sheet, and a description."""
    legend: Sequence[tuple[str, int]] = ()
    """The legend: names, and the numbers of their colours."""
    wide: bool = False
    """Whether it is a single drawing as wide as it needs to be; it scrolls sideways if there is no room."""


@dataclass(frozen=True)
class Folded:
    """Blocks behind a title, to be opened."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: "Sequence[Block]"


Block: TypeAlias = Table | Findings | TextBlock | Figures | Folded


def summary(*sentences: str) -> list[Block]:
    """Returns the sentences that a result begins with, one paragraph each. Empty sentences are left out."""
    return [TextBlock(sentence, is_summary=True) for sentence in sentences if sentence]


def shown_by(result: Any, record: Any) -> list[Block]:
    """Returns the blocks of a stage's result; none if its class has no method `blocks`.

    Args:
        result: a dataclass.
        record: the `adapt.runner.record.Record` of the stage.
    """
    declared = getattr(result, "blocks", None)
    return list(declared(record)) if declared else []


def filled(blocks: Sequence[Block]) -> list[Block]:
    """Returns the blocks that have something to show: no table without rows, and nothing folded around such tables."""
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
    """A part of the report with a heading."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The section's name for links within the page."""
        return "".join(character if character.isalnum() else "-" for character in self.title.lower())


METRICS = {"macro_f1": "macro-F1", "micro_f1": "micro-F1", "accuracy": "accuracy", "entity_f1": "entity-F1"}
"""Names of metrics, as people write them."""

TRANSDUCTIVE = " († transductive: pre-training has read the text of dev and test)"
"""Added to titles of results of models that were trained on the text that they are tested on."""


def formatted(value: Any, form: str) -> str:
    """Formats a value, such as with `{:.3f}`; a dash for None."""
    return NONE if value is None else form.format(value)


def in_points(score: float | None, form: str = ".1f") -> str:
    """Formats a score between 0 and 1 in points of 100; a dash for None."""
    return NONE if score is None else f"{100 * score:{form}}"


def worded_interval(low: float | None, high: float | None, text: Callable[[float], str], before: str = "") -> str:
    """Writes an interval as `+1.2 to +3.4`, after some text; empty if it is not known."""
    return "" if low is None or high is None else f"{before}{text(low)} to {text(high)}"


def interval(low: float | None, high: float | None, form: str) -> str:
    """Formats an interval as `1.2 to 3.4`; empty if it is not known."""
    return worded_interval(low, high, lambda value: f"{value:{form}}")


def heldout_note(documents: Mapping[str, int]) -> str:
    """Returns a sentence for a table's note with the number of held-out documents of each text; empty without texts."""
    counts = ", ".join(f"{name} {count:,}" for name, count in documents.items())
    return f" Held-out documents: {counts}." if counts else ""


def estimated(value: float | None, low: float | None, high: float | None, form: str) -> Cell:
    """Makes a cell of a value with its interval on the second line; a dash for None."""
    return Cell(NONE) if value is None else Cell(f"{value:{form}}", interval(low, high, form))


def darkness(values: Sequence[float]) -> list[float]:
    """Computes the darkness of heatmap cells: 0 for the highest value, 1 for the lowest; all 0 if they are equal."""
    low, high = min(values), max(values)
    return [(high - value) / (high - low) if high > low else 0.0 for value in values]


def square(names: Sequence[str], matrix: Sequence[Sequence[float]], title: str, note: str, is_share: bool) -> Table:
    """Makes a heatmap of a square matrix. Shares are dark where they are high, other figures where they are low.

    Args:
        names: of rows and columns.
        matrix: [names, names].
        title: of the table.
        note: below it.
        is_share: whether the values are shares, shown as percentages.
    """
    flat = darkness([value for row in matrix for value in row])
    rows: list[list[Cell | str]] = []
    for number, (name, values) in enumerate(zip(names, matrix, strict=True)):
        shades = values if is_share else flat[number * len(values) : (number + 1) * len(values)]
        texts = [f"{100 * value:.0f}%" if is_share else f"{value:.2f}" for value in values]
        rows.append([name, *(Cell(text, shade=shade) for text, shade in zip(texts, shades, strict=True))])
    meaning = "The darker, the higher." if is_share else "The darker, the lower."
    return Table(["", *names], rows, title, note, shades=meaning)
