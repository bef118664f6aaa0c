"""Shows selections of text in the report, as tables and as maps."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from adapt.runner.record import Record
from adapt.show.blocks import Block, Figures, FindingBlock, Findings, Folded
from adapt.show.drawing import canvas, color, style, svg
from adapt.show.report.study import Entry
from adapt.stage.judge_selection import Nearness, example_table, nearness_table

OPEN, MOST = 3, 12
"""Number of maps that are shown unfolded, and maximum number of maps. Each map takes about 130 KB of the page."""


def selection_blocks(entries: Sequence[Entry]) -> list[Block]:
    """Makes a table of all selections, a map per selection, and a table of documents to read.

    Args:
        entries: entries with a stage of kind `selection`. A stage that occurs in several entries is shown once.
    """
    entries = list({entry.record.key: entry for entry in reversed(entries)}.values())[::-1]
    if not entries:
        return []
    judged: dict[str, Nearness] = {}
    for entry in entries:
        judged[entry.label] = entry.result.selection
        if entry.result.random:
            judged[f"{entry.label}, random"] = entry.result.random
        judged[f"{entry.label}, target"] = entry.result.target
    chosen = [entry for entry in entries if entry.result.random][:MOST]
    maps = [drawn for entry in chosen if (drawn := selection_map(entry.label, entry.record))]
    read = [table for entry in entries if (table := example_table(entry.label, entry.record.path))]
    warned = [FindingBlock(entry.label, line, "warning") for entry in entries for line in entry.result.markup]
    return [
        *([Findings(warned)] if warned else []),
        nearness_table(judged),
        *maps[:OPEN],
        *([Folded("More maps", maps[OPEN:])] if maps[OPEN:] else []),
        Folded("Selected documents to read", read),
    ]


MAP_FILE = "map.json"
POOL, TARGET = "pool", "target"
SERIES = {POOL: 0, TARGET: 2, "selection": 1, "random": 4}
MARKERS = {POOL: ("o", 2.5, 0.5), TARGET: ("^", 4.0, 0.8)}
"""Markers of the documents of the pool and of the target: symbol, size [points] and opacity."""
OTHERS = ("o", 4.0, 0.8)
WIDTH, HEIGHT, ROOM = 4.8, 4.2, 0.04
NOTE = (
    "Similar texts lie close together. Distances between groups and their sizes mean little (t-SNE of "
    "TF-IDF in 50 dimensions, 200 texts of each at random)."
)


def selection_map(label: str, record: Record) -> Figures | None:
    """Draws the selected and the random documents on maps with the same axes. Returns None if there is no map.

    Args:
        label: label of the selection.
        record: record of the stage `selection`.
    """
    try:
        places: dict[str, Sequence[Sequence[float]]] = json.loads((record.path / MAP_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not places:
        return None
    drawn = [name for name in ("selection", "random") if name in places]
    captions = {"selection": f"{label}. {NOTE}", "random": f"{label}: random documents with as many tokens, same map."}
    drawings = [(_drawing(f"{label}-map-{name}", places, name), captions[name]) for name in drawn]
    return Figures(drawings, [(name, SERIES[name]) for name in (POOL, TARGET, *drawn)])


def _drawing(name: str, places: Mapping[str, Sequence[Sequence[float]]], shown: str) -> str:
    """Draws the pool, the target and one further set of documents, on axes that have room for all sets."""
    every = np.concatenate([np.reshape(points, (-1, 2)) for points in places.values()])
    low, high = every.min(0), every.max(0)
    room = ROOM * (high - low)
    with style():
        figure, axes = canvas(WIDTH, HEIGHT)
        for each in (POOL, TARGET, shown):
            points = np.reshape(places[each], (-1, 2))
            marker, size, opacity = MARKERS.get(each, OTHERS)
            axes.plot(
                *points.T,
                marker,
                color=color(SERIES[each]),
                markersize=size,
                alpha=opacity,
                markeredgewidth=0,
            )
        axes.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))
        axes.set(xticks=[], yticks=[])
        return svg(figure, name)
