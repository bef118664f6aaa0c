"""Renders blocks as plain text, such as `print(run)` shows."""

import io
from collections.abc import Sequence

from adapt.show.blocks import Block, Findings, Table, TextBlock, filled
from adapt.show.terminal import WIDTH, rich_table


def render_text(blocks: Sequence[Block], width: int = WIDTH) -> str:
    """The blocks as lines of at most `width` characters. Drawings and folded blocks are left out."""
    from rich.console import Console

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
