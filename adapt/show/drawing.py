"""Figures as SVG that takes its colours from the page, so that one drawing is readable in light and in dark."""

import io
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.show.blocks import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SERIES = 8
"""Number of colours. Further series start again with the first colour."""
LONGEST = 22
"""Maximum number of characters of a name in a figure."""
INK, LINE = "#010203", "#020304"
"""Placeholder colours, which `svg` replaces by variables of the style sheet."""
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, so that it can be read aloud, searched and copied
    "text.parse_math": False,  # show a dollar sign in a name as a dollar sign
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def color(series: int) -> str:
    """Returns the placeholder for the colour of a series; 0 is the baseline's."""
    return f"#03040{series % SERIES}"


def short(name: str) -> str:
    """Shortens a name, to leave room for the drawing next to it."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}\N{HORIZONTAL ELLIPSIS}{name[-8:]}"


def canvas(width: float, height: float) -> "tuple[Figure, Axes]":
    """Makes an empty figure of some size [inches] and its axes. It must be called within `style()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def style() -> Any:
    """Returns the context in which figures are made and saved."""
    from matplotlib import rc_context

    return rc_context(STYLE)


def svg(figure: "Figure", name: str) -> str:
    """Renders a figure as an `<svg>` element for a page.

    Args:
        figure: drawn with the stand-in colours.
        name: differs from that of every other figure of the page, since ids are derived from it.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.id": re.sub(r"\W", "-", name)}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(
        r' id="(?:figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|legend|\w+Collection)_\d+"', "", text
    )
    text = re.sub(r"#03040(\d)", r"var(--series-\1)", text)
    text = re.sub(r"'?sans-serif'?", "inherit", text)
    return text.replace(INK, "var(--ink)").replace(LINE, "var(--line)")


WIDTH = 4.8
"""Width of a drawing in inches: readable on a phone without scrolling."""
METRICS_LINES = "metrics.jsonl"
"""Name of a training's file of reports, one JSON object per line."""


def loss_curve(metrics: Path, name: str, caption: str) -> Drawing | None:
    """Draws the loss by step so far; returns None before the second report.

    Args:
        metrics: the file with a line of JSON per report.
        name: differs from that of every other drawing of the page.
        caption: stands below.
    """
    reports = [line for line in json_lines(metrics) if line.get("loss") is not None]
    if len(reports) < 2:
        return None
    steps, losses = [line["step"] for line in reports], [line["loss"] for line in reports]
    return Drawing(lambda: _drawn(steps, losses, name), caption)


def _drawn(steps: list[int], losses: list[float], name: str) -> str:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with style():
        figure, axes = canvas(WIDTH, 2.4)
        axes.plot(steps, losses, color=color(1), linewidth=1.6)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("step")
        axes.set_ylabel("training loss [nats per token]")
        return svg(figure, f"training-{name}")


def json_lines(file: Path) -> list[Any]:
    """Reads the JSON lines of a file up to one that is broken or still being written; none if the file is gone."""
    found = []
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            found.append(json.loads(line))
    return found
