"""The graph of stages: what was made of what. Stages of one kind that serve the same are one node, with a number."""

from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

from adapt.errors import StageError
from adapt.runner.record import Record, load_record
from adapt.show.report.entry import Entry, Study


@dataclass(eq=False)
class LineageNode:
    """Some stages of one kind."""

    kind: str
    label: str
    column: int = 0
    """The column that it is drawn in, counted from the left. It is to the right of all its inputs."""
    keys: set[str] = field(default_factory=set)
    inputs: "list[LineageNode]" = field(default_factory=list)


@dataclass
class _Stage:
    kind: str
    name: str
    inputs: list[str]


def lineage(study: Study) -> list[LineageNode]:
    """All stages behind a study's entries, those without inputs first."""
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
    """The column of each stage: as far left as its inputs allow, then, if it has users, as far right as they allow."""
    columns: dict[str, int] = {}
    for key in order:
        columns[key] = max((columns[input_key] + 1 for input_key in stages[key].inputs), default=0)
    for key in reversed(order):
        users = [columns[user] for user in order if key in stages[user].inputs]
        columns[key] = min(users) - 1 if users else columns[key]
    return columns


def _walk(study: Study) -> dict[str, _Stage]:
    """Returns every stage by its key. Where a record is gone, the stages that read it say its kind.

    An export counts as made from its training alone: its other inputs are what it was measured on.
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
                waiting += [input_record] if (input_record := _load(Path(reference["path"]))) else []
    return stages


def _load(folder: Path) -> Record | None:
    try:
        return load_record(folder)
    except StageError:
        return None


def _through_exports(entries: list[Entry], stages: dict[str, _Stage]) -> None:
    """Lets the users of a training read from its export instead: readers think of the model that was handed over."""
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
    """Gives each stage a node: an entry's label decides which, for other stages the nodes that use them."""
    users: dict[str, set[int]] = {key: set() for key in order}
    by_group: dict[object, LineageNode] = {}
    nodes = {}
    for key in reversed(order):
        stage = stages[key]
        group = (stage.kind, labels[key] if key in labels else frozenset(users[key]))
        node = by_group.setdefault(group, LineageNode(stage.kind, labels.get(key, stage.name)))
        node.keys.add(key)
        if key not in labels and node.label != stage.name:
            node.label = ""  # several names
        nodes[key] = node
        for input_key in stage.inputs:
            users[input_key].add(id(node))
    return nodes
