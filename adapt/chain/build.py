"""The stages of a chain file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.chain.expand import Node
from adapt.config import Config, ResourcesConfig
from adapt.errors import ConfigError
from adapt.job.job import Job
from adapt.model.start import Start
from adapt.redact import redact
from adapt.report.entry import Entry, Study
from adapt.runner import Record, Stage, Store
from adapt.runner.reach import everything
from adapt.runner.run import unfinished
from adapt.stage.context import Context, root_of
from adapt.stage.merge import Merge
from adapt.stage.selecting.select import Select
from adapt.stage.train import Train


@dataclass(frozen=True)
class Goal:
    """A stage that a chain is to finish, and its place in the chain."""

    name: str
    job: Job
    values: Mapping[str, str]
    stage: Stage[Any]
    config: Config

    @property
    def label(self) -> str:
        """What the goal is called, as `finetune[DAPT, acl_arc, 3]`."""
        return f"{self.name}[{', '.join(self.values.values())}]" if self.values else self.name


@dataclass(frozen=True)
class Chain:
    """The goals of a chain, and where they are reached."""

    goals: list[Goal]
    store: Store
    resources: ResourcesConfig


def build_chain(nodes: Sequence[Node]) -> Chain:
    """The stages of some nodes, which come after those that they start from.

    Raises:
        ConfigError, DataError, ModelError, StorageError: as `adapt.stage.context.Context.of`.
        ConfigError: nodes disagree on where results go, or which cluster is used.
    """
    starts: dict[str, Start] = {}
    selections: dict[str, Select] = {}
    goals: list[Goal] = []
    for node in nodes:
        start = _start(node, node.start, starts) if node.start else None
        made = {path: _start(node, label, starts) for path, label in node.compared.items()}
        selected = selections[node.selected] if node.selected else None
        context = Context.of(node.config, start, made, selected)
        goals += _goals(node, context, starts, selections)
        context.digests.save()
    first = nodes[0].config
    for node in nodes:
        if node.config.storage != first.storage or node.config.resources.address != first.resources.address:
            what = f"{node.label} and {nodes[0].label} differ in storage.root or resources.address"
            raise ConfigError(what, "set both for all stages, in `common`")
    return Chain(goals, Store(root_of(first)), first.resources)


def build_one(job: Job, config: Config) -> Chain:
    """The stages of a single job, as a chain with one goal.

    Raises:
        ConfigError, DataError, ModelError, StorageError: as `adapt.stage.context.Context.of`.
    """
    context = Context.of(config)
    goal = Goal(job.name, job, {}, job.final(context), context.config)
    context.digests.save()
    return Chain([goal], context.store, context.config.resources)


def _goals(node: Node, context: Context, starts: dict[str, Start], selections: dict[str, Select]) -> list[Goal]:
    """The goals of a node: one for each seed, or one in all.

    The model that the node makes is put into `starts`, what it selects into `selections`, for later nodes.
    """
    if node.job.parts:
        parts = node.job.parts(context)
        return [
            Goal(node.name, node.job, {**node.values, "seed": seed}, part, node.config) for seed, part in parts.items()
        ]
    final = node.job.final(context)
    if node.job.training and (training := node.job.training(final)):
        starts[node.label] = context.start.after(training, node.job.place, node.job.own_tokenizer)
    if node.job.texts:
        selections[node.label] = node.job.texts(final)
    return [Goal(node.name, node.job, node.values, final, node.config)]


def _start(node: Node, label: str, starts: Mapping[str, Start]) -> Start:
    """The model that a node begins with, or compares."""
    if label not in starts:  # domains learnt apart leave no model that has learnt all; shares leave one each
        raise ConfigError(
            f"{node.label} asks for the model of {label}, which leaves several: its sequence.mode is separate, or"
            " merge.shares has several",
            "name a stage that leaves one model: a sequence that is continual or joint, a merge with one share",
        )
    return starts[label]


def study(name: str, baseline: str, chain: Chain) -> Study:
    """What a chain has finished, for its report."""
    entries, missing = [], []
    for goal in chain.goals:
        record = chain.store.known(goal.stage.kind, goal.stage.name, goal.stage.key)
        if record:
            task = goal.config.task.name
            entries.append(Entry(goal.name, goal.job.name, goal.values, record, trainings(goal.stage), task))
        else:
            missing.append(goal.label)
    models = sorted({redact(goal.config.model.path) for goal in chain.goals})
    names = {stage.key: stage.name for stage in everything(goal.stage for goal in chain.goals)}
    return Study(name, baseline, entries, missing, models, names=names)


def trainings(stage: Stage[Any]) -> tuple[str, ...]:
    """The keys of the trainings that made the model a stage begins with, the first one first.

    A merged model has those of all that it was made of, and then the key of the merge.
    """
    start: Start | None = getattr(stage, "start", None)
    return _trainings_to(start) if start else ()


def _trainings_to(start: Start) -> tuple[str, ...]:
    made = start.training
    if made is None:
        return ()
    merged = [key for model in made.models for key in _trainings_to(model)] if isinstance(made, Merge) else []
    return tuple(dict.fromkeys([*trainings(made), *merged, made.key]))


def trainings_ahead(chain: Chain) -> list[tuple[str, int | None, float | None, float | None]]:
    """Label, tokens, device-hours and price of every training that is to run, as far as they can be said."""
    waiting, done = unfinished([goal.stage for goal in chain.goals], chain.store)
    labels = {training.key: label for goal in reversed(chain.goals) for training, label in _trainings_of(goal)}
    ahead = []
    for stage in waiting:
        if isinstance(stage, Train) and (forecast := stage.forecast(_records(stage, chain.store, done))):
            label = labels.get(stage.key, stage.name)
            ahead.append((label, forecast.tokens, forecast.device_hours, forecast.cost))
    return ahead


def _records(stage: Stage[Any], store: Store, done: Mapping[str, Record]) -> dict[str, Record]:
    """The records of a stage's finished inputs, added to those of `done`."""
    known = {needed.key: store.known(needed.kind, needed.name, needed.key) for needed in stage.inputs.values()}
    return {**done, **{key: record for key, record in known.items() if record}}


def _trainings_of(goal: Goal) -> list[tuple[Train, str]]:
    """The trainings that a goal needs, and what they are called: as the goal, or those of a sequence by their own."""
    needed = [stage for stage in everything([goal.stage]) if isinstance(stage, Train)]
    own = goal.job.training(goal.stage) if goal.job.training else None
    is_export = goal.stage.kind == "export"
    return [
        (stage, goal.label if is_export and stage is own else f"{goal.label}: {stage.name}")
        for stage in needed
        if stage is own or not is_export
    ]


def ahead(chain: Chain) -> dict[str, int]:
    """How many stages of each kind are to run."""
    counts: dict[str, int] = {}
    for stage in unfinished([goal.stage for goal in chain.goals], chain.store)[0]:
        counts[stage.kind] = counts.get(stage.kind, 0) + 1
    return counts
