"""Makes SVG drawings that take their colours from the page, so that they are readable in light and in dark mode."""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapt.show.blocks import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SERIES = 8
"""Number of colours for series. Further series reuse the colours from the first one on."""
LONGEST = 22
"""Maximum number of characters of a name in a drawing."""
INK, LINE = "#010203", "#020304"
"""Placeholder colours of text and lines, which `svg` replaces by variables of the style sheet."""
STYLE: Any = {
    "svg.fonttype": "none",  # keeps text as text, so that it can be read aloud, searched and copied
    "text.parse_math": False,  # shows a dollar sign in a name as a dollar sign
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
    """Returns the placeholder colour of a series. Series 0 has the colour of the baseline."""
    return f"#03040{series % SERIES}"


def short(name: str) -> str:
    """Shortens a name to LONGEST characters, to leave room for the drawing."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}\N{HORIZONTAL ELLIPSIS}{name[-8:]}"


def canvas(width: float, height: float) -> "tuple[Figure, Axes]":
    """Makes an empty figure and its axes, with width and height in inches. Call it within `style()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def style(**more: Any) -> Any:
    """Returns a context manager that applies STYLE and `more` to matplotlib. Make and save figures inside it."""
    from matplotlib import rc_context

    settings: Any = {**STYLE, **more}
    return rc_context(settings)


def svg(figure: "Figure", name: str) -> str:
    """Renders a figure as an `<svg>` element for a page.

    Args:
        figure: the figure, drawn with the placeholder colours.
        name: name that no other figure of the page has, because ids are derived from it.
    """
    file = io.StringIO()
    with style(**{"svg.hashsalt": name, "svg.id": re.sub(r"\W", "-", name)}):
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
"""Width of a drawing [inches]. Drawings of this width are readable on a phone without scrolling."""
METRICS_LINES = "metrics.jsonl"
"""Name of the file with the reports of a training run, one JSON object per line."""


def loss_curve(metrics: Iterable[Path], name: str, caption: str) -> Drawing | None:
    """Draws the training loss by step. Returns None if there are fewer than two reports.

    Args:
        metrics: paths of the files of reports, one file per phase, with a JSON object per line.
        name: name that no other drawing of the page has.
        caption: text below the drawing.
    """
    reports = [line for file in metrics for line in json_lines(file) if line.get("loss") is not None]
    if len(reports) < 2:
        return None
    steps, losses = [line["step"] for line in reports], [line["loss"] for line in reports]
    return Drawing(lambda: _drawn(steps, losses, name), caption)


def _drawn(steps: list[int], losses: list[float], name: str) -> str:
    with style():
        figure, axes = canvas(WIDTH, 2.4)
        axes.plot(steps, losses, color=color(1), linewidth=1.6)
        _show_steps(axes)
        axes.set_ylabel("training loss [nats per token]")
        return svg(figure, f"training-{name}")


def heldout_curves(
    curves: Mapping[str, Sequence[tuple[int, float]]], name: str, caption: str, exported: int | None = None
) -> Drawing:
    """Draws one curve of held-out losses by step for each text. Curve number i, counted from 1, has colour i.

    Args:
        curves: points of each curve as pairs of step and loss [nats per token], keyed by text.
        name: name that no other drawing of the page has.
        caption: text below the drawing.
        exported: step of the exported model, if it is not the last step. A vertical line marks this step.
    """
    return Drawing(lambda: _drawn_heldout(curves, name, exported), caption)


def _drawn_heldout(curves: Mapping[str, Sequence[tuple[int, float]]], name: str, exported: int | None) -> str:
    with style():
        figure, axes = canvas(WIDTH, 2.4)
        for number, points in enumerate(curves.values(), start=1):
            steps, losses = zip(*points, strict=True)
            axes.plot(steps, losses, color=color(number), linewidth=1.6, marker="o", markersize=3)
        if exported is not None:
            axes.axvline(exported, color=INK, linewidth=1, linestyle="--")
        _show_steps(axes)
        axes.set_ylabel("held-out loss [nats per token]")
        return svg(figure, f"held-out-{name}")


def _show_steps(axes: "Axes") -> None:
    """Labels the horizontal axis with a few step numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("step")


def json_lines(file: Path) -> list[Any]:
    """Reads the JSON lines of a file, up to the first line that is incomplete or not valid.

    A missing file has no lines.
    """
    found = []
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            found.append(json.loads(line))
    return found
