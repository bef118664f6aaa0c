"""Renders blocks on a terminal, as plain text, as HTML and as Markdown.

On a terminal, tables go to stderr and sentences are log lines. HTML is a self-contained page, or the output of a
notebook's cell.
"""

import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import ceil
from pathlib import Path
from textwrap import fill

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from adapt.show.blocks import Block, Cell, Figures, Findings, Folded, Section, Table, TextBlock, filled
from adapt.terminal.console import log, logs_json, printable

WIDTH = 120
"""Width of tables if stderr is not a terminal [characters]."""
LONGEST_WORD = 24
"""Longest word for which a column is made wide enough [characters]. Longer words may be broken."""
BORDER, PADDING = 1, 2
"""Width of a table's left border, and width of the spaces around a cell [characters]."""


def show_blocks(blocks: Sequence[Block]) -> None:
    """Prints blocks in order, and verdicts again after the last table.

    Drawings and folded blocks are left out, because only pages show them.
    """
    shown = filled(blocks)
    verdicts = [block.text for block in shown if isinstance(block, TextBlock) and block.is_verdict]
    last = max((number for number, block in enumerate(shown) if isinstance(block, Table)), default=None)
    for number, block in enumerate(shown):
        match block:
            case TextBlock():
                _say(block.text)
            case Findings():
                for finding in block.items:
                    _say(finding.sentence)
            case Table():
                _show_table(block)
            case Figures() | Folded():
                pass
        for text in verdicts if number == last else ():
            _say(text)


def _say(text: str) -> None:
    """Logs a sentence. On a terminal, lines are broken between words."""
    log(text if logs_json() or not sys.stderr.isatty() else _wrapped(text, Console(stderr=True).width))


def _wrapped(text: str, width: int) -> str:
    lines = (fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())
    return "\n".join(lines)


def _show_table(table: Table) -> None:
    console = Console(stderr=True)
    console = console if console.is_terminal else Console(stderr=True, width=WIDTH)
    console.print(drawn_table(table, console))
    if table.note:
        _say(table.note)


def drawn_table(table: Table, console: Console | None = None) -> RenderableType:
    """Formats a table for the width of a console.

    A cell's second line is put in brackets after the first line if there is room, and below it otherwise. Columns that
    do not fit without broken words are put into further tables. Each further table repeats the names of the rows.

    Args:
        table: a table with at least one row.
        console: console to print on, or None for stderr.
    """
    width = (console or Console(stderr=True)).width
    texts = _texts(table, is_inline=True)
    widths = [_longest(column) for column in texts]
    if _total(widths) > width:
        texts = _texts(table, is_inline=False)
    least = [_least(column, table.words or not number) for number, column in enumerate(texts)]
    title = [Text(printable(table.title))] if table.title else []
    groups = _groups(least, width)
    return Group(*title, *(_drawn(table, texts, columns, [least[c] for c in columns], width) for columns in groups))


def _texts(table: Table, is_inline: bool) -> list[list[str]]:
    """Returns the texts of each column, from the heading to the last row."""
    rows = [[_cell(cell, is_inline) for cell in row] for row in table.rows]
    return [list(column) for column in zip(map(printable, table.header), *rows, strict=True)]


def _longest(column: Sequence[str]) -> int:
    """Returns the width of the longest line in a column."""
    return max((Text(line).cell_len for text in column for line in text.split("\n")), default=0)


def _least(column: Sequence[str], of_words: bool) -> int:
    """Returns the minimum width at which a column breaks no words or, if it is a column of numbers, no numbers."""
    heading, *cells = column
    pieces = [piece for text in cells for piece in (text.split() if of_words else text.split("\n"))]
    return min(LONGEST_WORD, max((Text(piece).cell_len for piece in [*heading.split(), *pieces]), default=0))


def _total(widths: Sequence[int]) -> int:
    """Returns the width of a table whose columns have the given widths."""
    return BORDER + sum(width + PADDING + BORDER for width in widths)


def _groups(least: Sequence[int], width: int) -> list[list[int]]:
    """Splits columns with the given minimum widths into groups that fit into a width.

    The first column is in every group.
    """
    fewest = len(_filled_groups(least, width, len(least)))
    even = _filled_groups(least, width, ceil((len(least) - 1) / fewest) + 1)
    return even if len(even) == fewest else _filled_groups(least, width, len(least))


def _filled_groups(least: Sequence[int], width: int, most: int) -> list[list[int]]:
    """Fills each group with up to `most` columns before the next group begins."""
    groups: list[list[int]] = [[0]]
    for number in range(1, len(least)):
        is_full = len(groups[-1]) == most or _total([least[column] for column in [*groups[-1], number]]) > width
        if len(groups[-1]) > 1 and is_full:
            groups.append([0])
        groups[-1].append(number)
    return groups


def _drawn(
    table: Table, texts: Sequence[Sequence[str]], columns: Sequence[int], least: Sequence[int], width: int
) -> RichTable:
    widths = _fitted(least, [_longest(texts[column]) for column in columns], width)
    shown = RichTable()
    for column, of_column in zip(columns, widths, strict=True):
        shown.add_column(Text(texts[column][0]), overflow="fold", width=of_column)
    for number, row in enumerate(table.rows, start=1):
        shown.add_row(*(Text(texts[column][number], _style(row[column])) for column in columns))
    return shown


def _fitted(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Returns column widths that fit into a width. Wide columns are narrowed before narrow columns."""
    while _total(least) > width and max(least) > 1:  # The terminal is too narrow even for the longest words.
        least = [min(each, max(least) - 1) for each in least]
    cap = max(most, default=0)
    while cap > 1 and _total([max(low, min(high, cap)) for low, high in zip(least, most, strict=True)]) > width:
        cap -= 1
    widths = [max(1, low, min(high, cap)) for low, high in zip(least, most, strict=True)]
    spare = width - _total(widths)
    for number, high in enumerate(most):
        more = max(0, min(spare, high - widths[number]))
        widths[number], spare = widths[number] + more, spare - more
    return widths


def _cell(cell: Cell | str, is_inline: bool) -> str:
    if isinstance(cell, str):
        return printable(cell)
    if not cell.small:
        return printable(cell.text + cell.mark)
    if is_inline:
        return printable(f"{cell.text}{cell.mark} {_bracketed(cell.small)}")
    return printable(f"{cell.text}{cell.mark}\n{cell.small}")


def _bracketed(small: str) -> str:
    """Puts a text in brackets, unless the text is a standard deviation such as `± 1.2`."""
    return small if small.startswith("\N{PLUS-MINUS SIGN}") else f"({small})"


def _style(cell: Cell | str) -> str:
    return "bold green" if isinstance(cell, Cell) and cell.strong else ""


def render_text(blocks: Sequence[Block], width: int = WIDTH) -> str:
    """Renders blocks as text with tables of at most `width` characters. Drawings and folded blocks are left out."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    for block in filled(blocks):
        match block:
            case TextBlock():
                console.print(printable(block.text), markup=False, highlight=False, soft_wrap=True)
            case Findings():
                for finding in block.items:
                    console.print(printable(finding.sentence), markup=False, highlight=False, soft_wrap=True)
            case Table():
                console.print(drawn_table(block, console))
                if block.note:
                    console.print(printable(block.note), markup=False, highlight=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip("\n")


TEMPLATES = Path(__file__).parent / "templates"
FIT = "this.style.height = (this.contentDocument.documentElement.scrollHeight + 8) + 'px'"
"""JavaScript that makes a frame as high as its content."""


def render_html(name: str, subtitle: str, sections: list[Section], follows: bool = False) -> str:
    """Renders a page as HTML. All text is escaped; only drawings are markup.

    Args:
        name: title of the page.
        subtitle: line below the title.
        sections: sections of the page, in reading order.
        follows: whether the page is served and contains a script that updates it.
    """
    shown = [replace(section, blocks=filled(section.blocks)) for section in sections]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(name=name, subtitle=subtitle, sections=shown, follows=follows)
    )


class SelfShown(ABC):
    """Base class of objects that show their blocks: as text when they are printed, and as HTML in notebooks."""

    @abstractmethod
    def blocks(self) -> list[Block]:
        """Returns the blocks that show the object."""

    def __str__(self) -> str:
        return render_text(self.blocks())

    def _repr_html_(self) -> str:
        return render_notebook(self.blocks())


def render_notebook(blocks: Sequence[Block]) -> str:
    """Renders blocks as HTML for the output of a notebook's cell. The HTML needs no network and no widgets.

    The HTML is a frame, so that the styles of the notebook and of the blocks do not affect each other.
    """
    shown = filled(blocks)
    page = _environment().get_template("notebook.html.j2").render(blocks=shown)
    return (
        f'<iframe srcdoc="{escape(page)}" onload="{FIT}" sandbox="allow-same-origin" '
        f'style="width: 100%; height: {_height(shown)}px; border: 0"></iframe>'
    )


def _height(blocks: Sequence[Block]) -> int:
    """Estimates the height of the blocks [pixels]. The frame has this height until a script measures its content."""
    rows = sum(len(block.rows) + 3 for block in blocks if isinstance(block, Table))
    return 60 + 34 * rows + 260 * sum(isinstance(block, Figures) for block in blocks) + 24 * len(blocks)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda value: value if isinstance(value, Cell) else Cell(value)
    environment.globals["style"] = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment


MARKUP = str.maketrans({each: f"\\{each}" for each in "\\`*_[]>|#"} | {"<": "&lt;", "&": "&amp;", "\n": " ", "\r": " "})
"""Escapes of the characters that have a meaning in Markdown. Python-Markdown does not know the escape `\\<`."""


def render_markdown(name: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Renders sections as Markdown."""
    parts = [f"# {_plain(name)}", _plain(subtitle)]
    for section in sections:
        blocks = [text for block in filled(section.blocks) if (text := _markdown_block(block))]
        parts += [f"## {_plain(section.title)}", *blocks] if blocks else []
    return "\n\n".join(parts) + "\n"


def _markdown_block(block: Block) -> str:
    match block:
        case TextBlock():
            return _plain(block.text)
        case Findings():
            return "\n".join(f"- **{_plain(finding.head)}**: {_plain(finding.text)}" for finding in block.items)
        case Table():
            return markdown_table(block)
        case Folded():
            inner = "\n\n".join(text for part in block.blocks if (text := _markdown_block(part)))
            return f"### {_plain(block.title)}\n\n{inner}" if inner else ""
        case Figures():
            return ""


def markdown_table(table: Table) -> str:
    """Renders a table with its title and note as Markdown."""
    align = "---" if table.words else "---:"
    lines = [[_plain(heading) for heading in table.header], ["---", *[align] * (len(table.header) - 1)]]
    lines += [[_markdown_cell(cell) for cell in row] for row in table.rows]
    title = [f"**{_plain(table.title)}**"] if table.title else []
    note = [_plain(table.note)] if table.note else []
    return "\n\n".join([*title, "\n".join(f"| {' | '.join(line)} |" for line in lines), *note])


def _markdown_cell(value: Cell | str) -> str:
    if isinstance(value, str):
        return _plain(value)
    text = f"**{_plain(value.text)}**" if value.strong else _plain(value.text)
    small = (
        f" ({_plain(value.small)})"
        if value.small and value.small[0] not in "\N{PLUS-MINUS SIGN}"
        else f" {value.small}"
    )
    return (text + _plain(value.mark) + small).strip()


def _plain(text: str) -> str:
    """Escapes the characters that have a meaning in Markdown."""
    return text.translate(MARKUP)
