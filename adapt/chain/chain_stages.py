"""Builds the stages of a chain from its nodes.

A node may start from another node's model, train on text that another node selects, or use the best values of another
node's search.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from adapt.chain.chain_nodes import Node
from adapt.chain.look_stage import Goal, SeedLook
from adapt.config import Config, NotifyConfig, ResourcesConfig
from adapt.job.job_run import Job, push_of, regime_blocks
from adapt.model.start import Start
from adapt.runner import Finished, Record, Stage, Store
from adapt.runner.ensure import check_ahead, unfinished
from adapt.runner.stage import everything
from adapt.show.blocks import Block
from adapt.show.progress.chain_now import StudyNow
from adapt.show.progress.goals import TrainingAhead
from adapt.show.report.study import Entry, Study
from adapt.stage import merge_stage, push_model, select_documents
from adapt.stage.context import Context, root_of
from adapt.stage.train import Train
from adapt.statistics.seeds import MARGIN, Looked, Margin
from adapt.support.errors import ConfigError
from adapt.support.redact import redact
from adapt.tuning import confirm, job_trial, search_run, search_stage


@contextmanager
def _naming(label: str) -> Iterator[None]:
    """Writes the label of a node before the errors that the block raises."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{label}: {error.what}", error.fix) from error


def _confirming(node: Node) -> Node:
    """Returns the node that repeats the best trial of a search with fresh seeds. It has a name of its own."""
    return replace(node, name=f"{node.name}_confirm")


@dataclass(frozen=True)
class Chain:
    """The goals of a chain (stages with final results), the store of results, and the resources to run on."""

    goals: list[Goal]
    store: Store
    resources: ResourcesConfig
    notify: NotifyConfig
    pushes: list[push_model.Push] = field(default_factory=list)
    """Stages that send models to the Hugging Face Hub (`export.push`). They run after all goals."""
    later: list[str] = field(default_factory=list)
    """Labels of nodes whose stages are only known after a search has finished."""
    sequential: StudyNow | None = None
    """The current round and comparisons of a sequential study. None for other chains."""

    @property
    def searches(self) -> list[search_stage.Search]:
        """Searches that have not finished."""
        searches = [goal.stage for goal in self.goals if isinstance(goal.stage, search_stage.Search)]
        return [search for search in searches if not self.store.record_of(search)]


@dataclass
class Offered:
    """Results of nodes that later nodes may use, keyed by the label of the node that makes them."""

    starts: dict[str, Start] = field(default_factory=dict)
    """Model that each node makes, if it makes exactly one."""
    selections: dict[str, select_documents.Select] = field(default_factory=dict)
    best: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Best values of each finished search, keyed by field."""
    pushes: list[push_model.Push] = field(default_factory=list)
    """Stages that send models to the Hugging Face Hub."""
    unknown: list[str] = field(default_factory=list)
    """Labels of nodes without a result: unfinished searches, and nodes that depend on them."""


def build_chain(nodes: Sequence[Node]) -> Chain:
    """Builds the stages of nodes. Each node must follow the nodes that it starts from."""
    first = nodes[0].config
    for node in nodes:
        if node.config.storage != first.storage or node.config.resources.address != first.resources.address:
            what = f"{node.label} and {nodes[0].label} differ in storage.root or resources.address"
            raise ConfigError(what, "set both fields in `common`, for all stages")
        if node.config.resources.budget != first.resources.budget:
            what = f"{node.label} and {nodes[0].label} differ in resources.budget"
            raise ConfigError(what, "set the budget of the whole chain in `common`")
        _refuse_several_seeds(node)
    chain, offered = Chain([], Store(root_of(first)), first.resources, first.notify), Offered()
    for node in nodes:
        if {*node.needed} & {*offered.unknown}:
            if node.job.kind.task:
                job_trial.check_test_files(node.config)
            offered.unknown.append(node.label)
            chain.later.append(node.label)
        else:
            chain.goals.extend(_goals(node, offered, chain.store))
            if node.label in offered.unknown and node.config.tune.fresh_seeds:
                chain.later.append(_confirming(node).label)
    chain.goals[:] = _without_repeats(chain.goals)
    chain.pushes.extend(offered.pushes)
    refuse_same_repository(chain.pushes)
    return chain


def _refuse_several_seeds(node: Node) -> None:
    """Raises ConfigError if a node has several fine-tuning seeds for one member of the set `seed`.

    The report counts each member as one seed, so it would count models of the same pre-training as independent.
    """
    seeds = node.config.finetune.seeds
    if node.job.parts and not node.is_search and "seed" in node.values and len(seeds) != 1:
        raise ConfigError(
            f"{node.label} has {len(seeds)} fine-tuning seeds for each member of the set `seed`, but needs one",
            f'set finetune.seeds: ["{{seed}}"] in the entry {node.name}, so that each member is one run of the whole'
            " recipe, or give the set another name, so that each member gets its own row in the report",
        )


def _without_repeats(goals: Sequence[Goal]) -> list[Goal]:
    """Removes fine-tuning runs that differ from an earlier run only in the label.

    If `finetune.seeds` is the same for all members of the set `seed`, then all members have the same run of a recipe
    that trains no model before. The report counts this run once.
    """
    known: set[tuple[Any, ...]] = set()
    kept = []
    for goal in goals:
        if goal.stage.kind == "finetune":
            arm = [(name, member) for name, member in goal.values.items() if name != "seed"]
            run = (goal.name, *arm, goal.stage.key)
            if run in known:
                continue
            known.add(run)
        kept.append(goal)
    return kept


def refuse_same_repository(pushes: Sequence[push_model.Push]) -> None:
    """Refuses to push several models to the same repository, because the last one would replace the others."""
    exports: dict[str, str] = {}
    for push in pushes:
        if exports.setdefault(push.repository, push.export.key) != push.export.key:
            raise ConfigError(
                f"several stages push their models to {push.repository}",
                "set export.push for only one of these stages, or set a different repository for each stage",
            )


def build_one(job: Job, config: Config) -> Chain:
    """Builds the stages of a single job, as a chain with one goal."""
    context = Context.of(config, kind=job.kind)
    goal = Goal(job.name, job, {}, job.final(context), context.config)
    push = push_of(job, context, goal.stage)
    context.digests.save()
    return Chain([goal], context.store, context.config.resources, context.config.notify, [push] if push else [])


def _goals(node: Node, offered: Offered, store: Store) -> list[Goal]:
    """Returns the goals of a node, one per seed or one in total, and adds the node's results to `offered`."""
    start = _start(node, node.start, offered.starts) if node.start else None
    compared = {path: _start(node, label, offered.starts) for path, label in node.compared.items()}
    selected = offered.selections[node.selected] if node.selected else None

    def context_of(config: Config) -> Context:
        return Context.of(config, start, compared, selected, node.job.kind)

    if node.is_search:
        return _search_goals(node, offered, store, context_of, (start, *compared.values(), selected))
    config = node.config
    if node.tuned:
        best = {name: value for name, value in offered.best[node.tuned].items() if name not in node.keep}
        config = node.configured(best)
        if node.job.is_named:  # the job uses its name to find the earlier run that it continues
            config = job_trial.named_by_values(config, best)
    context = context_of(config)
    if node.job.parts:
        parts = node.job.parts(context)
        context.digests.save()
        # A member of the set `seed` names the run, because all members may have the same fine-tuning seed.
        named = [(node.values.get("seed", seed), part) for seed, part in parts.items()]
        return [Goal(node.name, node.job, {**node.values, "seed": seed}, part, config) for seed, part in named]
    final = node.job.final(context)
    _offer(node, context, final, offered)
    if push := push_of(node.job, context, final):
        offered.pushes.append(push)
    return [Goal(node.name, node.job, node.values, final, config)]


def _search_goals(
    node: Node, offered: Offered, store: Store, context_of: Callable[[Config], Context], given: tuple[Any, ...]
) -> list[Goal]:
    """Returns the goals of a search: the search, and a stage that scores its best trial on the test split.

    If the search has finished, its best values, and a model trained with them, are added to `offered`.

    Args:
        node: a node whose fields contain `tune`.
        offered: results of other nodes.
        store: store of finished stages.
        context_of: returns the context for a trial's configuration, including the models of other nodes.
        given: results of other nodes that all trials read: initial and compared models, and selected text. An item is
            None if the node does not use such a result.
    """
    tune = node.config.tune
    if tune.job not in (None, node.job.name):
        raise ConfigError(
            f"{node.label}: tune.job is {tune.job}, but the job of this stage is {node.job.name}", "leave out tune.job"
        )
    with _naming(node.label):
        search = search_run.search_of(node.job, node.config, node.configured, context_of, given)
    goals = [Goal(node.name, node.job, node.values, search, node.config)]
    record = store.record_of(search)
    if record is None:
        offered.unknown.append(node.label)
        return goals
    found = Finished.of(search, record).result
    best = found.best_row.settings
    offered.best[node.label] = best
    config = job_trial.named_by_values(node.configured(best), best)
    context = context_of(replace(config, name=f"{config.name}-best"))
    _offer(node, context, node.job.final(context), offered)
    if tune.fresh_seeds:
        confirming = _confirming(node)
        with _naming(confirming.label):
            goals.append(Goal(confirming.name, node.job, node.values, confirm.Confirm.of(search, found), node.config))
    return goals


def _offer(node: Node, context: Context, final: Stage[Any], offered: Offered) -> None:
    """Adds to `offered` the model that a node makes, and the documents that it selects."""
    if start := node.job.leaves(context, final):
        offered.starts[node.label] = start
    if node.job.texts:
        offered.selections[node.label] = node.job.texts(final)
    context.digests.save()


def _start(node: Node, label: str, starts: Mapping[str, Start]) -> Start:
    """Returns the model that a node starts from or compares."""
    if label not in starts:  # a sequence with one model per domain, or a merge with several shares, has several models
        raise ConfigError(
            f"{node.label} uses the model of {label}, but {label} makes several models: its sequence.mode is separate,"
            " or its merge.shares has several values",
            "name a stage that makes one model: a sequence with sequence.mode continual or joint, or a merge with one"
            " value in merge.shares",
        )
    return starts[label]


def study(name: str, baseline: str, chain: Chain, margin: Margin = MARGIN) -> Study:
    """Collects the finished results of a chain, for its report.

    Args:
        name: name of the chain.
        baseline: name of the member of the set `recipe`, or of the entry, with which the report compares the others.
        chain: the chain.
        margin: largest differences that count as negligible.
    """
    entries, missing, looks = [], [], list[Looked]()
    for goal in chain.goals:
        record = chain.store.record_of(goal.stage)
        if record and isinstance(goal.stage, SeedLook):
            looks.append(Finished.of(goal.stage, record).result)
        elif record:
            finished = Finished.of(goal.stage, record)
            made_by, task = trainings(goal.stage), goal.config.task.name
            entries.append(Entry(goal.name, goal.job.name, goal.values, finished, made_by, task))
        else:
            missing.append(goal.label)
    missing += chain.later
    models = sorted({redact(goal.config.model.path) for goal in chain.goals})
    names = {stage.key: stage.name for stage in everything(goal.stage for goal in chain.goals)}
    looked = None if chain.sequential is None else looks
    tuned = frozenset(goal.name for goal in chain.goals if goal.stage.kind == "finetune")
    return Study(name, baseline, entries, missing, models, names=names, margin=margin, looks=looked, tuned=tuned)


def trainings(stage: Stage[Any]) -> tuple[str, ...]:
    """Returns the keys of the training stages that led to the model of a stage, in the order of training.

    For a merged model, these are the keys of the training stages of all merged models, followed by the key of the
    merge. For a student, the training stages of its teachers come before its own.
    """
    start: Start | None = getattr(stage, "start", None)
    return _trainings_to(start) if start else ()


def _trainings_to(start: Start) -> tuple[str, ...]:
    made = start.training
    if made is None:
        return ()
    sources = made.models if isinstance(made, merge_stage.Merge) else made.teachers if isinstance(made, Train) else ()
    needed = [key for model in sources for key in _trainings_to(model)]
    return tuple(dict.fromkeys([*trainings(made), *needed, made.key]))


def trainings_ahead(chain: Chain) -> list[TrainingAhead]:
    """Returns every training stage that will run, with its tokens, device-hours and cost if they are known."""
    waiting, done = unfinished([goal.stage for goal in chain.goals], chain.store)
    labels = {training.key: label for goal in reversed(chain.goals) for training, label in _trainings_of(goal)}
    ahead = []
    for stage in waiting:
        if isinstance(stage, Train) and (forecast := stage.forecast(_records(stage, chain.store, done))):
            label = labels.get(stage.key, stage.name)
            ahead.append(TrainingAhead(label, forecast.tokens, forecast.device_hours, forecast.cost))
    return ahead


def regimes_ahead(chain: Chain) -> list[Block]:
    """Describes passes over the text and tokens per parameter of each training stage that will run."""
    waiting, done = unfinished([goal.stage for goal in chain.goals], chain.store)
    labels = {training.key: label for goal in reversed(chain.goals) for training, label in _trainings_of(goal)}
    return regime_blocks(
        [
            (labels.get(stage.key, stage.name), stage.regime(_records(stage, chain.store, done)), stage.config)
            for stage in waiting
            if isinstance(stage, Train)
        ]
    )


def _records(stage: Stage[Any], store: Store, done: Mapping[str, Record]) -> dict[str, Record]:
    """Returns the records in `done` and the records of the stage's finished inputs, keyed by stage key."""
    known = {needed.key: store.record_of(needed) for needed in stage.inputs.values()}
    return {**done, **{key: record for key, record in known.items() if record}}


def _trainings_of(goal: Goal) -> list[tuple[Train, str]]:
    """Returns the training stages that a goal needs, with labels.

    If the goal exports the model of a training stage, the label of that stage is the goal's label. The labels of other
    training stages are the goal's label and the stage's name.
    """
    needed = [stage for stage in everything([goal.stage]) if isinstance(stage, Train)]
    of_trials = isinstance(goal.stage, search_stage.Search | confirm.Confirm | SeedLook)
    own = goal.job.training(goal.stage) if goal.job.training and not of_trials else None
    is_export = goal.stage.kind == "export"
    return [
        (stage, goal.label if is_export and stage is own else f"{goal.label}: {stage.name}")
        for stage in needed
        if stage is own or not is_export
    ]


def ahead(chain: Chain) -> dict[str, int]:
    """Returns the number of stages that will run, keyed by kind of stage, such as `train`."""
    counts: dict[str, int] = {}
    for stage in unfinished([goal.stage for goal in chain.goals], chain.store)[0]:
        counts[stage.kind] = counts.get(stage.kind, 0) + 1
    return counts


def check_chain(chain: Chain) -> None:
    """Checks all stages of the chain before any stage runs, so that wrong settings are reported early."""
    last = [*(goal.stage for goal in chain.goals), *chain.pushes]
    check_ahead(unfinished(last, chain.store)[0], chain.store)
