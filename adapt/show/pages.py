"""Renders blocks as self-contained HTML, as HTML for notebooks, and as Markdown."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from adapt.show.blocks import Block, Cell, Figures, Findings, Folded, Section, Table, TextBlock, filled
from adapt.show.terminal import render_text

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


MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"} | {"\n": " "})


def render_markdown(name: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Renders sections as Markdown."""
    parts = [f"# {_plain(name)}", _plain(subtitle)]
    for section in sections:
        blocks = [text for block in filled(section.blocks) if (text := _block(block))]
        parts += [f"## {_plain(section.title)}", *blocks] if blocks else []
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case TextBlock():
            return _plain(block.text)
        case Findings():
            return "\n".join(f"- **{_plain(finding.head)}**: {_plain(finding.text)}" for finding in block.items)
        case Table():
            return _table(block)
        case Folded():
            inner = "\n\n".join(text for part in block.blocks if (text := _block(part)))
            return f"### {_plain(block.title)}\n\n{inner}" if inner else ""
        case Figures():
            return ""


def _table(table: Table) -> str:
    align = "---" if table.words else "---:"
    lines = [[_plain(heading) for heading in table.header], ["---", *[align] * (len(table.header) - 1)]]
    lines += [[_cell(cell) for cell in row] for row in table.rows]
    title = [f"**{_plain(table.title)}**"] if table.title else []
    note = [_plain(table.note)] if table.note else []
    return "\n\n".join([*title, "\n".join(f"| {' | '.join(line)} |" for line in lines), *note])


def _cell(value: Cell | str) -> str:
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
