"""The stages of a chain file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapt.chain.expand import ADAPTING, Node
from adapt.config import ResourcesConfig
from adapt.errors import ConfigError
from adapt.redact import redact
from adapt.report.entry import Entry, Study
from adapt.runner import Stage, Store, plan
from adapt.runner.run import unfinished
from adapt.stages import Catalogue, Start
from adapt.stages.base import START


@dataclass(frozen=True)
class Goal:
    """A stage that a chain is to finish, and its place in the chain."""

    name: str
    job: str
    values: Mapping[str, str]
    stage: Stage
    catalogue: Catalogue
    """That built it."""

    @property
    def label(self) -> str:
        """`finetune[DAPT, acl_arc, 3]`."""
        return f"{self.name}[{', '.join(self.values.values())}]" if self.values else self.name


@dataclass(frozen=True)
class Chain:
    """The goals of a chain, and where they are reached."""

    goals: list[Goal]
    store: Store
    resources: ResourcesConfig


def build(nodes: Sequence[Node]) -> Chain:
    """The stages of some nodes, which come after those that they start from.

    Raises:
        ConfigError, DataError, ModelError, StorageError: as `adapt.stages.base.Base`; the message names the node.
        ConfigError: nodes disagree on where results go, or which cluster is used.
    """
    starts: dict[str, Start] = {}
    goals: list[Goal] = []
    for node in nodes:
        start = _start(node, node.start, starts) if node.start else None
        catalogue = Catalogue(node.config, start)
        if node.job in ADAPTING:
            final = last_stage(catalogue, node.job)
            if node.config.sequence.mode != "separate":
                starts[node.label] = Start(final.inputs["training"], catalogue.pretrained)
            goals.append(Goal(node.name, node.job, node.values, final, catalogue))
        elif node.job == "finetune":
            goals += [_run(node, catalogue, seed) for seed in node.config.finetune.seeds]
        else:
            made = {label: _start(node, label, starts) for label in node.compared}
            final = catalogue.compared(made) if made else last_stage(catalogue, node.job)
            goals.append(Goal(node.name, node.job, node.values, final, catalogue))
        catalogue.remember()
    first = nodes[0].config
    for node in nodes:
        if node.config.storage != first.storage or node.config.resources.address != first.resources.address:
            raise ConfigError(f"{node.label} has another storage.root or resources.address", "set both in `common`")
    return Chain(goals, Store(Path(first.storage.root).expanduser().absolute()), first.resources)


def last_stage(catalogue: Catalogue, job: str) -> Stage:
    """What a job is to finish; of fine-tuning, the scores of all seeds."""
    made: Mapping[str, Callable[[], Stage]] = {
        "dapt": catalogue.dapt,
        "tapt": catalogue.tapt,
        "das": catalogue.sequence,
        "finetune": catalogue.scores,
        "evaluate": catalogue.compared,
        "similarity": catalogue.similarity,
    }
    return made[job]()


def _start(node: Node, label: str, starts: Mapping[str, Start]) -> Start:
    """A model that a node begins with, or compares."""
    if label not in starts:  # domains learnt apart leave no model that has learnt all
        raise ConfigError(
            f"{node.label} asks for the model of {label}, which learns every domain apart (sequence.mode separate)",
            "name a sequence of another mode",
        )
    return starts[label]


def _run(node: Node, catalogue: Catalogue, seed: int) -> Goal:
    """Fine-tuning with one seed."""
    values = {**node.values, "seed": str(seed)}
    return Goal(node.name, node.job, values, catalogue.finetuned(seed), catalogue)


def study(name: str, baseline: str, chain: Chain) -> Study:
    """What a chain has finished, for its report."""
    entries, missing = [], []
    for goal in chain.goals:
        record = chain.store.known(goal.stage.stage, goal.stage.name, goal.stage.key)
        if record:
            task = goal.catalogue.config.task.name
            entries.append(Entry(goal.name, goal.job, goal.values, record, trainings(goal.stage), task))
        else:
            missing.append(goal.label)
    models = sorted({redact(goal.catalogue.config.model.path) for goal in chain.goals})
    return Study(name, baseline, entries, missing, models, names=_names(goal.stage for goal in chain.goals))


def _names(stages: Iterable[Stage]) -> dict[str, str]:
    """Of stages and all that they need, by key."""
    found: dict[str, str] = {}
    waiting = list(stages)
    for stage in waiting:
        if stage.key not in found:
            found[stage.key] = stage.name
            waiting += stage.inputs.values()  # which this loop then comes to
    return found


def trainings(stage: Stage) -> tuple[str, ...]:
    """The keys of the trainings that made the model a stage begins with, the first one first."""
    start = stage.inputs.get(START)
    return (*trainings(start), start.key) if start else ()


def trainings_ahead(chain: Chain) -> list[tuple[str, int | None, float | None, float | None]]:
    """Label, tokens, device-hours and price of every training that is to run, as far as they can be said."""
    found: dict[str, tuple[str, int | None, float | None, float | None]] = {}
    for goal in chain.goals:
        for export in _exports(goal.stage):
            if forecast := goal.catalogue.ahead(plan(export, chain.store), chain.store):
                label = goal.label if export is goal.stage else f"{goal.label}: {export.name}"
                made = forecast.tokens, forecast.device_hours, forecast.cost
                found.setdefault(export.inputs["training"].key, (label, *made))  # sequences share what they begin with
    return list(found.values())


def _exports(stage: Stage) -> list[Stage]:
    """The models that a goal is to make: one, or those of a sequence."""
    return [each for each in (stage, *stage.inputs.values()) if each.stage == "export"]


def ahead(chain: Chain) -> dict[str, int]:
    """How many stages of each kind are to run."""
    counts: dict[str, int] = {}
    for stage in unfinished([goal.stage for goal in chain.goals], chain.store)[0]:
        counts[stage.stage] = counts.get(stage.stage, 0) + 1
    return counts
