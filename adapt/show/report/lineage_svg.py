"""Draws the graph of stages in layers, from left to right (Sugiyama et al. 1981)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TypeAlias

from adapt.show.report.lineage import LineageNode

HEIGHT, COLUMN_GAP, ROW_GAP, MARGIN = 38.0, 40.0, 12.0, 3.0
"""Sizes of boxes and of the gaps between them [px]."""
LETTER = 6.9
"""The width of a character, about [px]."""
SWEEPS = 9
"""How many times the columns are sorted."""


@dataclass(eq=False)
class _Slot:
    """A place in a column: a node's box, or room for an arrow that passes."""

    column: int
    node: LineageNode | None
    neighbours: "list[_Slot]" = field(default_factory=list)
    middle: float = -1.0
    """Its height in the drawing [px]; negative until it is placed."""

    @property
    def height(self) -> float:
        return HEIGHT if self.node else 0.0


_Way: TypeAlias = list[_Slot]
"""An arrow: from a box, past other columns, to a box."""


def draw_lineage(nodes: Sequence[LineageNode]) -> str:
    """An `<svg>` element, styled by the page; each box names a kind of stage, how many there are, and what for."""
    slots, ways = _laid_out(nodes)
    columns = [[slot for slot in slots if slot.column == number] for number in range(1 + max(n.column for n in nodes))]
    _place(columns)
    widths = [max((_width(slot.node) for slot in column if slot.node), default=0.0) for column in columns]
    lefts = [MARGIN + sum(widths[:number]) + COLUMN_GAP * number for number in range(len(columns))]
    width, height = lefts[-1] + widths[-1] + MARGIN, max(slot.middle + slot.height / 2 for slot in slots) + MARGIN
    arrows = [_arrow(way, lefts, widths) for way in ways]
    boxes = [_box(slot.node, lefts[slot.column], slot.middle, widths[slot.column]) for slot in slots if slot.node]
    return (
        f'<svg class="lineage" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="graph of stages" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f'<defs><marker id="arrowhead" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>{"".join(arrows)}{"".join(boxes)}</svg>'
    )


def _laid_out(nodes: Sequence[LineageNode]) -> tuple[list[_Slot], list[_Way]]:
    """Slots for all boxes, and for arrows in the columns between; those from one box share their slots."""
    boxes = {node: _Slot(node.column, node) for node in nodes}
    passing: dict[tuple[LineageNode, int], _Slot] = {}
    ways = []
    for node in nodes:
        for source in node.inputs:
            between = range(source.column + 1, node.column)
            ways.append(
                [boxes[source], *(passing.setdefault((source, c), _Slot(c, None)) for c in between), boxes[node]]
            )
    for way in ways:
        for left, right in pairwise(way):
            left.neighbours.append(right)
            right.neighbours.append(left)
    return [*boxes.values(), *passing.values()], ways


def _place(columns: Sequence[list[_Slot]]) -> None:
    """Sorts each column by the mean height of its slots' neighbours, forth and back, so that few arrows cross."""
    tallest = max(_tall(column) for column in columns)
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            column.sort(key=_pull)
            top = MARGIN + (tallest - _tall(column)) / 2
            for slot in column:
                slot.middle = top + slot.height / 2
                top += slot.height + ROW_GAP


def _tall(column: Sequence[_Slot]) -> float:
    return sum(slot.height + ROW_GAP for slot in column) - ROW_GAP


def _pull(slot: _Slot) -> float:
    heights = [neighbour.middle for neighbour in slot.neighbours if neighbour.middle >= 0]
    return sum(heights) / len(heights) if heights else slot.middle


def _lines(node: LineageNode) -> tuple[str, str]:
    number = f" \N{MULTIPLICATION SIGN} {len(node.keys)}" if len(node.keys) > 1 else ""
    return node.kind + number, node.label


def _width(node: LineageNode) -> float:
    return 20 + LETTER * max(map(len, _lines(node)))


def _arrow(way: _Way, lefts: Sequence[float], widths: Sequence[float]) -> str:
    path = f"M{lefts[way[0].column] + widths[way[0].column]:.0f} {way[0].middle:.0f}"
    for left, right in pairwise(way):
        start, end = lefts[left.column] + widths[left.column], lefts[right.column]
        bend = (end - start) / 2
        path += (
            f"C{start + bend:.0f} {left.middle:.0f} {end - bend:.0f} {right.middle:.0f} {end:.0f} {right.middle:.0f}"
        )
        path += "" if right.node else f"H{end + widths[right.column]:.0f}"
    return f'<path class="arrow" d="{path}"/>'


def _box(node: LineageNode, left: float, middle: float, width: float) -> str:
    kind, label = (escape(line) for line in _lines(node))
    center, top = left + width / 2, middle - HEIGHT / 2
    words = f'<text class="stage" x="{center:.0f}" y="{middle + (-3 if label else 4):.0f}">{kind}</text>'
    words += f'<text class="what" x="{center:.0f}" y="{middle + 11:.0f}">{label}</text>' if label else ""
    return f'<g><rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{HEIGHT:.0f}" rx="6"/>{words}</g>'
