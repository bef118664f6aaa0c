"""What a report is written in: sections of plain blocks that HTML and Markdown both render."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

NONE = "\N{EN DASH}"
"""In a cell for which there is nothing."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    small: str = ""
    """A second, smaller line: a deviation or an interval."""
    mark: str = ""
    """Raised behind the text: `*`."""
    strong: bool = False
    shade: float | None = None
    """Heatmaps: 0 to 1."""


@dataclass(frozen=True)
class Table:
    """Cells in rows; the first of each is the row's name."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""
    words: bool = False
    """Whether it holds words, set flush left, and not figures."""


@dataclass(frozen=True)
class FindingBlock:
    """One sentence of the verdict, or one warning."""

    head: str
    text: str
    tone: str = "plain"
    """better, worse, open (undecided), warning or plain."""


@dataclass(frozen=True)
class Findings:
    """A list of them."""

    kind: ClassVar[str] = "findings"
    items: Sequence[FindingBlock]


@dataclass(frozen=True)
class TextBlock:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Figures:
    """Drawings side by side; Markdown leaves them out."""

    kind: ClassVar[str] = "figures"
    drawings: Sequence[tuple[str, str]]
    """Of each its SVG, with colours of the page's style sheet, and what it shows."""
    legend: Sequence[tuple[str, int]] = ()
    """Names and numbers of colours."""
    wide: bool = False
    """A single one that is as wide as it needs to be, scrolling sideways where there is no room."""


@dataclass(frozen=True)
class Folded:
    """Blocks behind a title, to be opened."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: "Sequence[Block]"


Block: TypeAlias = Table | Findings | TextBlock | Figures | Folded


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading."""

    title: str
    blocks: Sequence[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """For links within the page."""
        return "".join(each if each.isalnum() else "-" for each in self.title.lower())
