"""Renders blocks on a terminal (tables on stderr, sentences as log lines) and as plain text."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from adapt.show.blocks import Block, Cell, Figures, Findings, Folded, Table, TextBlock, filled
from adapt.terminal.console import log

WIDTH = 120
"""Width of tables in characters where stderr is no terminal."""


def show_blocks(blocks: Sequence[Block]) -> None:
    """Prints blocks in order. Drawings and folded blocks are left out: the page has them."""
    for block in filled(blocks):
        match block:
            case TextBlock():
                log(block.text)
            case Findings():
                for finding in block.items:
                    log(finding.sentence)
            case Table():
                _show_table(block)
            case Figures() | Folded():
                pass


def _show_table(table: Table) -> None:
    console = Console(stderr=True)
    console = console if console.is_terminal else Console(stderr=True, width=WIDTH)
    console.print(rich_table(table, console))
    if table.note:
        log(table.note)


def drawn_table(table: Table) -> RichTable:
    """A table for the terminal that stderr is."""
    return rich_table(table, Console(stderr=True))


def rich_table(table: Table, console: Console) -> RichTable:
    """A table for a console. A cell's second line stands next to the first in brackets if there is room, else below it.

    Args:
        table: with at least one row.
        console: that it is to be printed on.
    """
    shown = _rich_table(table, is_inline=True)
    return shown if _natural_width(shown, console) <= console.width else _rich_table(table, is_inline=False)


def _natural_width(table: RichTable, console: Console) -> int:
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _rich_table(table: Table, is_inline: bool) -> RichTable:
    shown = RichTable(title=Text(table.title) if table.title else None, title_justify="left")
    for heading in table.header:
        shown.add_column(Text(heading), overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(_cell(cell, is_inline), _style(cell)) for cell in row))
    return shown


def _cell(cell: Cell | str, is_inline: bool) -> str:
    if isinstance(cell, str):
        return cell
    if not cell.small:
        return cell.text + cell.mark
    if is_inline:
        return f"{cell.text}{cell.mark} {_bracketed(cell.small)}"
    return f"{cell.text}{cell.mark}\n{cell.small}"


def _bracketed(small: str) -> str:
    """Deviations (± 1.2) stand as they are; everything else goes into brackets."""
    return small if small.startswith("\N{PLUS-MINUS SIGN}") else f"({small})"


def _style(cell: Cell | str) -> str:
    return "bold green" if isinstance(cell, Cell) and cell.strong else ""


def render_text(blocks: Sequence[Block], width: int = WIDTH) -> str:
    """The blocks as lines of at most `width` characters. Drawings and folded blocks are left out."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    for block in filled(blocks):
        match block:
            case TextBlock():
                console.print(block.text, markup=False, highlight=False, soft_wrap=True)
            case Findings():
                for finding in block.items:
                    console.print(finding.sentence, markup=False, highlight=False, soft_wrap=True)
            case Table():
                console.print(rich_table(block, console))
                if block.note:
                    console.print(block.note, markup=False, highlight=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip("\n")
