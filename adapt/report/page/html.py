"""The report as one HTML file that needs nothing else: no script, no network."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from adapt.report.page.blocks import Cell, Section

TEMPLATES = Path(__file__).parent / "templates"


def render_html(name: str, subtitle: str, sections: list[Section]) -> str:
    """The page; all text is escaped, drawings alone are markup."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = lambda value: value if isinstance(value, Cell) else Cell(value)
    environment.globals["style"] = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html.j2").render(name=name, subtitle=subtitle, sections=sections)
