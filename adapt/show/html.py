"""The report as HTML that needs nothing else: one file without script, or a page that follows a chain."""

from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from adapt.show.blocks import Cell, Section, filled

TEMPLATES = Path(__file__).parent / "templates"


def render_html(name: str, subtitle: str, sections: list[Section], follows: bool = False) -> str:
    """The page; all text is escaped, drawings alone are markup.

    Args:
        name: the title.
        subtitle: the line below it.
        sections: in the order in which they are read.
        follows: whether it is served, and its script brings it up to date.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = [replace(section, blocks=filled(section.blocks)) for section in sections]
    environment.filters["cell"] = lambda value: value if isinstance(value, Cell) else Cell(value)
    environment.globals["style"] = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html.j2").render(
        name=name, subtitle=subtitle, sections=shown, follows=follows
    )
