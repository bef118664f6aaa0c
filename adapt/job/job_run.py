"""Defines jobs, runs their stages, and plans which stages would run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from adapt.advise.regime import Regime
from adapt.config import Config, ResourcesConfig
from adapt.config.job_config import Kind
from adapt.job.job_text import TextOutlook, outlook_blocks, text_outlooks
from adapt.model.start import Start
from adapt.parse import parse
from adapt.ray.runtime import address_of, connect, totals
from adapt.runner import Done, Finished, Record, Stage, Store, ensure, ensure_all, notifications, plan_stages
from adapt.runner.ensure import Planned, check_ahead, unfinished
from adapt.show.blocks import Block, Table, TextBlock, first_sentence, joined_names, shown_by, summary
from adapt.show.progress.goals import TrainingAhead, trainings_table
from adapt.show.renderers import SelfShown, show_blocks
from adapt.stage import export_model, push_model, select_documents
from adapt.stage.budget import budget_outlook, within_budget
from adapt.stage.context import Context
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from adapt.terminal.console import finish


@dataclass(frozen=True, eq=False)
class Job:
    """A job that users can start.

    A new job needs a module, a test and an entry in the table of `adapt.job`.
    """

    kind: Kind
    """Name of the job, and sections of the configuration that the job needs."""
    final: Callable[[Context], Stage[Any]]
    """Function that builds the job's last stage. This stage depends on all other stages of the job."""
    answer: Callable[[Context, Finished[Any], Sequence[str]], Any] | None = None
    """Function that computes the job's result from the last stage and the command line. None means that the last
    stage's result is the job's result. The result is a dataclass with a method `blocks`."""
    training: Callable[[Any], Stage[Any] | None] | None = None
    """Function that takes the job's last stage and returns the training stage or merge whose model other jobs may start
    from, or None if the job makes no such model."""
    tokens: Callable[[Any], Start] | None = None
    """Function that takes the job's last stage and returns the model whose tokenizer and architecture the new model
    has. None means that the new model has the tokenizer and architecture of the initial model."""
    own_tokenizer: bool = False
    """Whether the job's new model has a new tokenizer."""
    texts: Callable[[Any], select_documents.Select] | None = None
    """Function that takes the job's last stage and returns the selection that other jobs may train on. None means that
    the job selects no text."""
    takes_texts: bool = False
    """Whether the field `from` of this job's entries in a chain file may name a stage that selects text."""
    parts: Callable[[Context], Mapping[str, Stage[Any]]] | None = None
    """Function that builds the last stage of each seed. Chains use these stages instead of the stage that summarizes
    all seeds."""
    first: Callable[[Any], list[Stage[Any]]] | None = None
    """Function that takes the job's last stage and returns stages that run first, because they are likely to fail."""
    exported: Callable[[Any], export_model.Export | None] | None = None
    """Function that takes the job's last stage and returns the stage that writes the model for `export.push`. None
    means that the job pushes no model."""
    is_wide: bool = False
    """Whether some stages of the job can run in parallel."""
    is_named: bool = False
    """Whether a later run with the same name continues the job. In a chain, the job's name is prefixed with the
    chain's name."""

    @property
    def name(self) -> str:
        """The job's name, such as `dapt`."""
        return self.kind.name

    def leaves(self, context: Context, final: Stage[Any]) -> Start | None:
        """Returns the model that other jobs may start from, or None if there is no such model or more than one."""
        training = self.training(final) if self.training else None
        if training is None:
            return None
        tokens = self.tokens(final) if self.tokens else context.start
        return tokens.after(training, self.own_tokenizer)


@dataclass(frozen=True, eq=False)
class JobRun:
    """A job whose stages have run."""

    job: Job
    context: Context
    finished: Finished[Any]
    """The last stage of the job, with its result."""
    arguments: Sequence[str] = ()
    """The command line of the job."""
    push: push_model.Push | None = None
    """The stage that sends the model to the Hub. It has not run yet. None if `export.push` is not set."""

    def finish_push(self) -> list[Block]:
        """Sends the model to the Hub, unless it was sent before, and returns blocks that report the push.

        Raises:
            HubError: the push failed. The model's folder is unchanged.
        """
        if self.push is None:
            return []
        pushed = ensure(self.push, self.context.store)
        return shown_by(pushed.result, pushed.record)

    @cached_property
    def result(self) -> Any:
        """The result of the job, which is a dataclass."""
        if self.job.answer:
            return self.job.answer(self.context, self.finished, self.arguments)
        return self.finished.result

    def model_folder(self, share: float | None = None) -> Path:
        """Returns the folder of the model that the job made.

        Args:
            share: the value of `merge.shares` whose merged model is meant, if there are several values. None otherwise.

        Raises:
            ConfigError: the job makes no model, no model with this share, or several models.
        """
        made = getattr(self.result, "models_made", None)
        if made is None:
            raise ConfigError(
                f"this run of the job {self.job.name} made no model",
                "read the job's result, or run a job that makes a model: dapt, tapt or merge",
            )
        folders: dict[str, Path] = made(self.finished.record)
        name = "" if share is None else f"{share:g}"
        if name not in folders:
            known = ", ".join(folders) or "none"
            raise ConfigError(
                f"the job made no model for the share {name or '(none given)'}", f"set the share to one of: {known}"
            )
        return folders[name]

    def figures(self) -> Mapping[str, Any]:
        """Returns the job's result as plain values, which the command prints in the last line of stdout."""
        return asdict(self.result) if self.job.answer else self.finished.record.metrics

    def blocks(self) -> list[Block]:
        """Returns the blocks that show the job's result."""
        return shown_by(self.result, self.finished.record)


def push_of(job: Job, context: Context, final: Stage[Any]) -> push_model.Push | None:
    """Returns the stage that sends the job's model to the Hub. Returns None if `export.push` is not set."""
    repository = context.config.export.push
    if repository and job.training and not job.exported:
        raise ConfigError(
            f"export.push is set, but dontstop {job.name} pushes no model",
            f"leave it out, and push the folder of the model: dontstop push PATH {repository}",
        )
    return push_model.Push.of(context, job.exported(final)) if job.exported else None


def run_stages_of(job: Job, context: Context, arguments: Sequence[str] = ()) -> JobRun:
    """Runs the unfinished stages of a job."""
    store, resources, settings = context.store, context.config.resources, context.config.notify
    with notifications.notifying(settings, f"{job.name} {context.config.name}") as finished:
        stage = job.final(context)
        push = push_of(job, context, stage)
        context.digests.save()
        if push:
            check_ahead(unfinished([push], store)[0], store)
        waiting = unfinished([stage], store)[0] if job.is_wide or settings.webhook else []
        with within_budget(resources, [stage], store) as admitting:
            if not job.is_wide:
                run = JobRun(job, context, ensure(stage, admitting), arguments, push)
            else:
                check_ahead(waiting, store)
                if job.first:
                    run_stages(job.first(stage), admitting, resources)
                (record,) = run_stages([stage], admitting, resources)
                run = JobRun(job, context, Finished.of(stage, record), arguments, push)
        if waiting and settings.webhook:
            finished(first_sentence(run.blocks()), run.finished.path)
    return run


def carry_out(job: Job, arguments: Sequence[str]) -> None:
    """Parses a command line, runs the job, and shows the result."""
    run_and_show(job, Context.of(parse(arguments, f"dontstop {job.name}", job.kind), kind=job.kind), arguments)


def run_and_show(job: Job, context: Context, arguments: Sequence[str]) -> None:
    """Runs a job, shows its result, and prints one line for programs on stdout."""
    run = run_stages_of(job, context, arguments)
    show_blocks(run.blocks())
    try:
        show_blocks(run.finish_push())
    finally:  # reports the result even if the push fails
        finish(job.name, run.finished.path, dict(run.figures()))


@dataclass(frozen=True)
class Plan(SelfShown):
    """The stages of a job in the order in which they run. `print(plan)` shows them as a table."""

    job: str
    stages: list[Planned]
    trainings: dict[str, Any]
    """A forecast of tokens, time and cost for each unfinished training stage, keyed by the stage's name. The forecast
    is None if the stage's text is not prepared yet."""
    phases: Table | None = None
    """Table with a row per phase of training that will run, if `training.phases` is set."""
    regimes: dict[str, Regime | None] = field(default_factory=dict)
    """Tokens per parameter and number of passes over the texts, for each unfinished training stage, keyed by the
    stage's name. None if the stage's text is not prepared yet."""
    config: Config | None = None
    """Configuration of the job."""
    budget: str = ""
    """Comparison of the expected device time with `resources.budget`, in sentences. Empty if there is no budget."""
    texts: Sequence[TextOutlook] = ()
    """Properties of the text of each corpus to train on, measured on a sample."""

    @property
    def to_run(self) -> list[Planned]:
        """The stages of the job that are not finished."""
        return [line for line in self.stages if not line.record]

    def blocks(self) -> list[Block]:
        """Returns the number of stages that will run, a table of all stages, and a forecast of the training runs."""
        number, to_run = len(self.stages), len(self.to_run)
        finished = f"{number - to_run} of {number} stages are finished"
        said = f"{finished}; {to_run} will run." if to_run else f"{finished}, so nothing will run."
        blocks: list[Block] = [*summary(said, self.budget), plan_table(self.stages), *outlook_blocks(self.texts)]
        if len(self.trainings) > 1:
            rows = [
                TrainingAhead(name, of.tokens, of.device_hours, of.cost) if of else TrainingAhead(name)
                for name, of in self.trainings.items()
            ]
            blocks += [table for table in [self.phases, trainings_table(rows)] if table]
        for name, forecast in self.trainings.items() if len(self.trainings) == 1 else ():
            if forecast:
                lines = [[figure, text] for figure, text in forecast.lines().items()]
                blocks.append(Table(["figure", "forecast"], lines, f"Forecast for the training {name}", words=True))
        return [*blocks, *regime_blocks([(name, of, self.config) for name, of in self.regimes.items()])]


def regime_blocks(trainings: Sequence[tuple[str, Regime | None, Config | None]]) -> list[Block]:
    """Describes passes over the text and tokens per parameter of training stages, with one line per regime.

    A table recommends settings for the first stage that has little text.

    Args:
        trainings: name, regime and configuration of each training stage. The regime is None if the stage's text is not
            prepared yet.
    """
    names: dict[Regime, list[str]] = {}
    for name, regime, _ in trainings:
        if regime:
            names.setdefault(regime, []).append(name)
    if trainings and not names:
        return [
            TextBlock(
                "Regime (tokens per parameter): not known until the text is prepared; dontstop advise estimates it."
            )
        ]
    several = len(names) > 1
    blocks: list[Block] = [
        TextBlock(f"{joined_names(of)}: {regime.sentence()}" if several else regime.sentence())
        for regime, of in names.items()
    ]
    for _, regime, config in trainings:
        if regime and config and (follows := regime.recommendations(config)):
            return [*blocks, *regime.shown(follows)[1:]]
    return blocks


def plan_table(stages: list[Planned]) -> Table:
    """Makes a table with a row per stage: whether the stage is finished or will run, its folder, and why it runs."""
    rows = [
        [
            line.stage.kind,
            "finished" if line.record else "will run",
            f"{line.folder.parent.name}/{line.folder.name}",
            _why(line),
        ]
        for line in stages
    ]
    return Table(["stage", "state", "folder", "why it runs"], rows, words=True)


def _why(line: Planned) -> str:
    """Describes why a stage will run. The text is empty if the stage is finished."""
    if line.record:
        return ""
    if not line.nearest:
        return "it has never run"
    return "\n".join([*line.changed, f"(compared with {line.nearest.path.name})"])


def plan_of(job: Job, context: Context) -> Plan:
    """Plans a job without running anything."""
    final = job.final(context)
    last = push_of(job, context, final) or final
    stages = plan_stages(last, context.store)
    context.digests.save()
    check_ahead(unfinished([last], context.store)[0], context.store)
    records = {line.stage.key: line.record for line in stages if line.record}
    waiting = [line.stage for line in stages if isinstance(line.stage, Train) and not line.record]
    forecasts = {stage: stage.forecast(records) for stage in waiting}
    named = {stage.name: forecast for stage, forecast in forecasts.items()}
    outlook = budget_outlook(context.config.resources, [final], context.store)
    regimes = {stage.name: stage.regime(records) for stage in waiting}
    phases = export_model.planned_phases(forecasts, Done(records))
    texts = text_outlooks([line.stage for line in stages], records)
    return Plan(job.name, stages, named, phases, regimes, context.config, outlook, texts)


ON_A_CLUSTER = 16
"""Default number of stages started together on a cluster, which delays their tasks until resources are free."""


def run_stages(stages: Sequence[Stage[Any]], store: Store, resources: ResourcesConfig) -> list[Record]:
    """Runs unfinished stages, in parallel if resources suffice, and returns the records of all stages."""
    waiting = unfinished(stages, store)[0]
    if not waiting:
        return ensure_all(stages, store, None, 1)
    check_ahead(waiting, store)
    return ensure_all(stages, store, *room(resources, len(stages)))


def room(resources: ResourcesConfig, stages: int) -> tuple[Mapping[str, float] | None, int]:
    """Connects to Ray. Returns the resources that parallel stages share, and the maximum number of parallel stages.

    Args:
      resources: the section `resources`. On a cluster, the returned resources are None, which sets no limit.
      stages: number of stages to finish.
    """
    connect(resources)
    joined = address_of(resources) is not None
    most = resources.stages_at_once or (ON_A_CLUSTER if joined else stages + ON_A_CLUSTER)
    return (None if joined else totals()), most
