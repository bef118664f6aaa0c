"""Holds the chain of a report: its finished stages, each with its entry in the chain file. Draws their lineage.

The lineage is a graph of the stages and their inputs. Stages of one kind that are used by the same stages share a
node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from adapt.runner import Finished
from adapt.runner.record import Record, load_record
from adapt.statistics.seeds import MARGIN, Looked, Margin
from adapt.support.errors import StageError

HTML = "report.html"
"""File name of the report's page."""


@dataclass(frozen=True)
class Entry:
    """A finished stage of a chain, with its entry in the chain file."""

    name: str
    """Name of the entry in the chain file, such as `dapt`, `tapt` or `finetune`."""
    job: str
    """Name of the entry's job, such as `dapt`, `tapt`, `finetune` or `evaluate`."""
    values: Mapping[str, str]
    """The swept values, such as `{"recipe": "DAPT", "task": "acl_arc", "seed": "3"}`. Empty if nothing is swept."""
    finished: Finished[Any]
    """The stage with its record and result. For job `finetune`, it is the run of one seed. For jobs `dapt` and `tapt`,
    it is the stage `export`."""
    trained: tuple[str, ...] = ()
    """For job `finetune`, keys of the `train` and `merge` stages that made the model, in order. It is empty if the
    chain did not make the model."""
    task: str = ""
    """For job `finetune`, the current name of the task. Records do not contain this name, because it does not affect
    results."""

    @property
    def record(self) -> Record:
        """The record of the finished stage."""
        return self.finished.record

    @property
    def label(self) -> str:
        """Label of the stage in tables, such as `tapt · TAPT · acl_arc`."""
        return " · ".join([self.name, *self.values.values()])

    @property
    def result(self) -> Any:
        """The result of the finished stage.

        Raises:
            StageError: the record does not contain a result of the expected class.
        """
        return self.finished.result


@dataclass(frozen=True)
class Study:
    """The chain that a report shows, with the results so far."""

    name: str
    baseline: str
    """Name of the recipe that others are compared with: a member of the swept set `recipe` or, if there is no such set,
    an entry of the chain file."""
    entries: list[Entry]
    missing: list[str] = field(default_factory=list)
    """Labels of stages that have not run, such as `finetune[DAPT, acl_arc, 3]`."""
    models: list[str] = field(default_factory=list)
    """Models that the chain started from, as given in the configuration."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Current label of each stage, keyed by the stage's key. Records have the labels from the time of the run."""
    margin: Margin = MARGIN
    """Equivalence margins: smaller differences count as equal."""
    looks: Sequence[Looked] | None = None
    """Finished looks (interim analyses) of a sequential study, with earlier looks first. None for other studies."""
    tuned: frozenset[str] = frozenset()
    """Names of the chain file's entries that fine-tune, including those whose runs have not finished."""

    def name_of(self, record: Record) -> str:
        """Returns the current label of a stage."""
        return self.names.get(record.key, record.name)


def row_names(name: str, values: Mapping[str, str], task: str, with_entry: bool) -> tuple[str, ...]:
    """Returns the name of the row that a fine-tuning run belongs to, such as `("acl_arc", "mode=lora")`.

    Args:
        name: name of the run's entry in the chain file.
        values: the swept values.
        task: name of the task. It is only used if no swept set is called `task`.
        with_entry: whether the name of the entry is part of the row's name.
    """
    more = [f"{key}={value}" for key, value in values.items() if key not in ("recipe", "task", "seed")]
    return (values.get("task", task), *([name] if with_entry else []), *more)


def method_name(name: str, values: Mapping[str, str]) -> str:
    """Returns the name of a sequence's method: the swept values except order and seed, or else the entry's name."""
    return " · ".join(value for key, value in values.items() if key not in ("order", "seed")) or name


def record_at(folder: str | Path) -> Record | None:
    """Reads the record of the stage in a folder. Returns None if the record is gone or cannot be read."""
    try:
        return load_record(Path(folder))
    except StageError:
        return None


def upstream(record: Record, name: str) -> Record | None:
    """Reads the record of an input of a stage. Returns None if the stage has no such input or the record is gone."""
    return record_at(record.inputs[name]["path"]) if name in record.inputs else None


@dataclass(eq=False)
class LineageNode:
    """A box in the drawing of the lineage. It represents one or more stages of the same kind."""

    kind: str
    label: str
    column: int = 0
    """Column of the box in the drawing, counted from the left. It is to the right of the boxes of all inputs."""
    keys: set[str] = field(default_factory=set)
    inputs: "list[LineageNode]" = field(default_factory=list)

    @property
    def lines(self) -> tuple[str, str]:
        """Returns the two lines of text in the box: the kind with the number of stages, and the label."""
        number = f" \N{MULTIPLICATION SIGN} {len(self.keys)}" if len(self.keys) > 1 else ""
        return self.kind + number, self.label


@dataclass
class _Stage:
    kind: str
    name: str
    inputs: list[str]


def lineage(study: Study) -> list[LineageNode]:
    """Lists the nodes of the lineage: all stages that a study's entries depend on. Stages without inputs come first."""
    stages = _walk(study)
    _through_exports(study.entries, stages)
    labels = {entry.record.key: _label(entry) for entry in study.entries}
    order = list(TopologicalSorter({key: stage.inputs for key, stage in stages.items()}).static_order())
    nodes = _grouped(order, stages, labels)
    columns = _columns(order, stages)
    for key in order:
        node = nodes[key]
        node.column = max(node.column, columns[key])
        node.inputs += [
            nodes[input_key] for input_key in stages[key].inputs if nodes[input_key] not in (node, *node.inputs)
        ]
    return list(dict.fromkeys(nodes[key] for key in order))


def _columns(order: list[str], stages: dict[str, _Stage]) -> dict[str, int]:
    """Assigns a column to each stage: as far left as its inputs allow, then as far right as later stages allow."""
    columns: dict[str, int] = {}
    for key in order:
        columns[key] = max((columns[input_key] + 1 for input_key in stages[key].inputs), default=0)
    for key in reversed(order):
        users = [columns[user] for user in order if key in stages[user].inputs]
        columns[key] = min(users) - 1 if users else columns[key]
    return columns


def _walk(study: Study) -> dict[str, _Stage]:
    """Returns all stages, keyed by stage key. If a record is gone, the stage's kind comes from the stages that use it.

    An export's only input in the lineage is its training stage, because its other inputs are texts for measuring.
    """
    stages: dict[str, _Stage] = {}
    waiting = [entry.record for entry in study.entries]
    while waiting:
        record = waiting.pop()
        inputs = [
            reference for name, reference in record.inputs.items() if record.stage != "export" or name == "training"
        ]
        stages[record.key] = _Stage(record.stage, study.name_of(record), [reference["key"] for reference in inputs])
        for reference in inputs:
            if reference["key"] not in stages:
                stages[reference["key"]] = _Stage(reference["stage"], "", [])
                waiting += [found] if (found := record_at(reference["path"])) else []
    return stages


def _through_exports(entries: list[Entry], stages: dict[str, _Stage]) -> None:
    """Replaces training stages by their exports among the inputs of other stages, because readers know exports."""
    export_of = {
        entry.record.inputs["training"]["key"]: entry.record.key for entry in entries if entry.record.stage == "export"
    }
    for stage in stages.values():
        if stage.kind != "export":
            stage.inputs = [export_of.get(key, key) for key in stage.inputs]


def _label(entry: Entry) -> str:
    swept = [value for name, value in entry.values.items() if name not in ("task", "seed")]
    return " · ".join(swept) or entry.name


def _grouped(order: list[str], stages: dict[str, _Stage], labels: dict[str, str]) -> dict[str, LineageNode]:
    """Assigns each stage to a node.

    Stages of entries share a node if they have the same kind and label. Other stages share a node if they have the same
    kind and are used by the same nodes.
    """
    users: dict[str, set[int]] = {key: set() for key in order}
    by_group: dict[object, LineageNode] = {}
    nodes = {}
    for key in reversed(order):
        stage = stages[key]
        group = (stage.kind, labels[key] if key in labels else frozenset(users[key]))
        node = by_group.setdefault(group, LineageNode(stage.kind, labels.get(key, stage.name)))
        node.keys.add(key)
        if key not in labels and node.label != stage.name:
            node.label = ""  # no label, because stages with different names share the node
        nodes[key] = node
        for input_key in stage.inputs:
            users[input_key].add(id(node))
    return nodes


HEIGHT, COLUMN_GAP, ROW_GAP, EDGE = 38.0, 40.0, 12.0, 3.0
"""Height of boxes, gaps between columns and rows of boxes, and margin of the drawing [px]."""
LETTER = 6.9
"""Approximate width of a character [px]."""
SWEEPS = 9
"""Number of times that the boxes of each column are sorted."""


@dataclass(eq=False)
class _Slot:
    """A vertical position in a column, for a box or for an arrow that passes the column. Sizes are in pixels."""

    column: int
    node: LineageNode | None
    neighbours: "list[_Slot]" = field(default_factory=list)
    middle: float = -1.0
    """Vertical position of the slot's middle, or a negative number until it is assigned."""
    left: float = 0.0
    right: float = 0.0

    @property
    def height(self) -> float:
        return HEIGHT if self.node else 0.0


def draw_lineage(nodes: Sequence[LineageNode]) -> str:
    """Draws the lineage as an `<svg>` element. Each box shows a kind of stage, the number of stages, and a label."""
    slots, ways = _laid_out(nodes)
    columns = [[slot for slot in slots if slot.column == number] for number in range(1 + max(n.column for n in nodes))]
    _place(columns)
    right = EDGE - COLUMN_GAP
    for column in columns:
        left, letters = right + COLUMN_GAP, [len(line) for slot in column if slot.node for line in slot.node.lines]
        right = left + (20 + LETTER * max(letters) if letters else 0.0)
        for slot in column:
            slot.left, slot.right = left, right
    width, height = right + EDGE, max(slot.middle + slot.height / 2 for slot in slots) + EDGE
    drawn = "".join([*map(_arrow, ways), *(_box(slot, slot.node) for slot in slots if slot.node)])
    return (
        f'<svg class="lineage" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="graph of stages" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f'<defs><marker id="arrowhead" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>{drawn}</svg>'
    )


def _laid_out(nodes: Sequence[LineageNode]) -> tuple[list[_Slot], list[list[_Slot]]]:
    """Makes slots for boxes, and for arrows that pass columns. Arrows from the same box share their slots."""
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
    """Sorts each column's slots by the mean height of the slots that they are connected to, so that few arrows cross.

    The columns are visited alternately from left to right and from right to left.
    """
    tallest = max(_tall(column) for column in columns)
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            column.sort(key=_pull)
            top = EDGE + (tallest - _tall(column)) / 2
            for slot in column:
                slot.middle = top + slot.height / 2
                top += slot.height + ROW_GAP


def _tall(column: Sequence[_Slot]) -> float:
    return sum(slot.height + ROW_GAP for slot in column) - ROW_GAP


def _pull(slot: _Slot) -> float:
    heights = [neighbour.middle for neighbour in slot.neighbours if neighbour.middle >= 0]
    return sum(heights) / len(heights) if heights else slot.middle


def _arrow(way: Sequence[_Slot]) -> str:
    """Draws an arrow from one box past other columns to another box."""
    path = f"M{way[0].right:.0f} {way[0].middle:.0f}"
    for before, after in pairwise(way):
        bend, y = (after.left - before.right) / 2, f"{after.middle:.0f}"
        path += f"C{before.right + bend:.0f} {before.middle:.0f} {after.left - bend:.0f} {y} {after.left:.0f} {y}"
        path += "" if after.node else f"H{after.right:.0f}"
    return f'<path class="arrow" d="{path}"/>'


def _box(slot: _Slot, node: LineageNode) -> str:
    kind, label = map(escape, node.lines)
    middle, center = slot.middle, (slot.left + slot.right) / 2
    words = f'<text class="stage" x="{center:.0f}" y="{middle + (-3 if label else 4):.0f}">{kind}</text>'
    words += f'<text class="what" x="{center:.0f}" y="{middle + 11:.0f}">{label}</text>' if label else ""
    size = f'width="{slot.right - slot.left:.0f}" height="{HEIGHT:.0f}"'
    return f'<g><rect x="{slot.left:.0f}" y="{middle - HEIGHT / 2:.0f}" {size} rx="6"/>{words}</g>'
