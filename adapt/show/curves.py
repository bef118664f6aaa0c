"""The loss of a training, step by step, as a drawing."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from adapt.show.blocks import Drawing

WIDTH = 4.8
"""Width of a drawing in inches: readable on a phone without scrolling."""
METRICS_LINES = "metrics.jsonl"
"""File of a training with a line of JSON for each of its reports."""


def loss_curve(metrics: Path, name: str, caption: str) -> Drawing | None:
    """The loss by step, as far as the training is; None before its second report.

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

    from adapt.show.drawing import canvas, color, style, svg

    with style():
        figure, axes = canvas(WIDTH, 2.4)
        axes.plot(steps, losses, color=color(1), linewidth=1.6)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("step")
        axes.set_ylabel("training loss [nats]")
        return svg(figure, f"training-{name}")


def json_lines(file: Path) -> list[Any]:
    """The lines of JSON of a file up to one that is broken or still being written; none where the file is gone."""
    found = []
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            found.append(json.loads(line))
    return found
