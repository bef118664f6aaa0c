"""The report as Markdown: the same blocks, without the drawings."""

from collections.abc import Sequence

from adapt.show.blocks import Block, Cell, Figures, Findings, Folded, Section, Table, TextBlock, filled

MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"} | {"\n": " "})


def render_markdown(name: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole text."""
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
            return f"### {_plain(block.title)}\n\n{inner}"
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
    """Text with no meaning to Markdown."""
    return text.translate(MARKUP)
