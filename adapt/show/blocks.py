"""What a report is written in: sections of plain blocks that HTML and Markdown both render."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

NONE = "\N{EN DASH}"
"""What a cell holds if there is nothing to show."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    small: str = ""
    """A second, smaller line: a deviation or an interval."""
    mark: str = ""
    """A mark that is raised behind the text, such as `*`."""
    strong: bool = False
    shade: float | None = None
    """In heatmaps, how dark the cell is: 0 to 1."""


@dataclass(frozen=True)
class Table:
    """Cells in rows; the first of each is the row's name."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""
    words: bool = False
    """Whether the table holds words, set flush left, and not figures."""


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
    """A list of findings."""

    kind: ClassVar[str] = "findings"
    items: Sequence[FindingBlock]


@dataclass(frozen=True)
class TextBlock:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Drawing:
    """A drawing that is made when a page needs it."""

    draw: Callable[[], str]
    """Makes the SVG, with colours of the page's style sheet."""
    about: str
    """A description, for those who do not see it."""

    def __iter__(self) -> Iterator[str]:
        """The SVG and the description."""
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


def shown_by(result: Any, record: Any) -> list[Block]:
    """The blocks of a stage's result; none where its class has no method `blocks`.

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
