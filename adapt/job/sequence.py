"""Domains learnt one after another (Continual Pre-training of Language Models), one by one, or all at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapt.config import TaskConfig
from adapt.config.kinds import Kind
from adapt.corpus.files.sources import sources_of
from adapt.job.domains import as_listed, check_domains, domain_of, domain_texts, tasks_of
from adapt.job.general import after_training, before_training
from adapt.job.job import Job
from adapt.job.text import general_text, on_one_source, replayed_text
from adapt.runner import Finished, Stage
from adapt.stage.context import Context, root_of
from adapt.stage.evaluate import Evaluate
from adapt.stage.export import Export
from adapt.stage.finetune import Finetune
from adapt.stage.gather import Gather
from adapt.stage.matrices import Runs, Step
from adapt.stage.noted import Noted
from adapt.stage.prepare import Prepare
from adapt.stage.sequence import Sequence as SequenceStage
from adapt.stage.sequence import SequenceResult
from adapt.stage.task import task_of
from adapt.stage.train import Train


@dataclass(frozen=True)
class Plan:
    """What all models of a sequence have in common."""

    context: Context
    """The context with the model to begin with."""
    order: Sequence[str]
    texts: Mapping[str, Prepare]
    """By domain."""
    general: Prepare | None
    tasks: Sequence[TaskConfig]

    @property
    def beside(self) -> dict[str, Prepare]:
        """What is measured of every model."""
        return {"general": self.general} if self.general else {}


def sequence(context: Context) -> SequenceStage:
    """The stages of all domains.

    For each: what the method wants to know before, training, what it wants to know after, export, held-out losses, and
    the tasks of all domains seen so far, each taught to a copy of the model, which is not told the domain (arXiv
    2302.03241, section 4). Every stage depends on the domains before it alone: one that is added at the end redoes
    nothing, another order shares what it has in common.

    Raises:
        ConfigError: a domain is unknown, or comes twice, by its name or by its text; a task belongs to none; or the
            sequence of this name was begun otherwise.
    """
    config, order = context.config, check_domains(context.config)
    general = general_text(context)
    plan = Plan(context, order, domain_texts(context, order, general), general, tasks_of(config, order))
    before = {
        name: Evaluate.of(context, "before", {"domain": text, **plan.beside}) for name, text in plan.texts.items()
    }
    ways = {"continual": _one_after_another, "separate": _each_alone, "joint": _all_at_once}
    steps = tuple(ways[config.sequence.mode](plan))
    return SequenceStage(
        name=config.name,
        config=config,
        order=tuple(order),
        owners={task.name: domain_of(task) for task in plan.tasks},
        texts=plan.texts,
        tasks={task.name: task_of(context, task) for task in plan.tasks},
        before=before,
        untaught=_taught(plan, context, plan.tasks) if config.sequence.forward_transfer else {},
        steps=steps,
        past=_after(plan, steps[-1]) if config.sequence.mode == "continual" else {},
    )


def _one_after_another(plan: Plan) -> Iterator[Step]:
    context = plan.context
    past = before_training(context, [plan.texts[plan.order[0]]])
    keys = tuple((name, text.key) for name, text in plan.texts.items())
    noted = Noted.of(root_of(context.config), context.config.name, keys)
    noted.check()
    for number, name in enumerate(plan.order, start=1):
        domain = _on_domain(plan, context, name)
        training = Train.of(domain, {"domain": plan.texts[name]}, replayed_text(domain, plan.general), past)
        step = _step(plan, domain, number, name, replace(training, noted=noted.first(number)), past)
        yield step
        context, past = context.starting_from(step.training), _after(plan, step)


def _each_alone(plan: Plan) -> Iterator[Step]:
    for number, name in enumerate(plan.order, start=1):
        domain = _on_domain(plan, plan.context, name)
        training = Train.of(domain, {"domain": plan.texts[name]}, replayed_text(domain, plan.general))
        yield _step(plan, domain, number, name, training, {})


def _all_at_once(plan: Plan) -> Iterator[Step]:
    """One training on the mixed domains, with as many steps as all domains have together."""
    config, training = plan.context.config, plan.context.config.training
    given = {name: getattr(training, name) for name in ("max_steps", "max_tokens")}
    limits = {name: value * len(plan.order) for name, value in given.items() if value}
    sources = [source for source in config.corpus.sources if source.name in plan.order]
    corpus = replace(config.corpus, sources=sources)
    joint = plan.context.configured(replace(config, corpus=corpus, training=replace(training, **limits)))
    texts = as_listed(config, plan.texts)
    stage = Train.of(joint, texts, replayed_text(joint, plan.general))
    yield _step(plan, joint, len(plan.order), "", stage, {})


def _on_domain(plan: Plan, context: Context, name: str) -> Context:
    """With one of the sources as the whole corpus."""
    config = plan.context.config
    return context.configured(on_one_source(config, name, dict(sources_of(config.corpus))[name]))


def _step(
    plan: Plan, context: Context, number: int, name: str, training: Train, past: Mapping[str, Stage[Any]]
) -> Step:
    """A model's export, its losses on the domains before, and its tasks.

    Args:
        plan: of the sequence.
        context: that the training was made from.
        number: of domains learnt.
        name: of the domain; empty for all at once.
        training: the model's.
        past: what the method knew before it.
    """
    config, order = plan.context.config, plan.order
    mode = config.sequence.mode
    text = plan.texts[name] if name else Gather(config.name, as_listed(config, plan.texts))
    measured = {"domain": text, **plan.beside}
    export = Export(
        name=context.config.name,
        config=context.config,
        domain=text,
        general=plan.general,
        text=None,
        training=training,
        before=Evaluate.of(context, "before", measured),
        after=Evaluate.of(context.starting_from(training), "after", measured),
        is_transductive=False,
    )
    seen = {"continual": order[:number], "separate": [name], "joint": order}[mode]
    trained = plan.context.starting_from(training)
    others = {other: plan.texts[other] for other in seen if other != name}
    return Step(
        learnt=number,
        domain=name,
        training=training,
        export=export,
        others=Evaluate.of(trained, f"after-{number}", others) if others else None,
        runs=_taught(plan, trained, _tested(plan, number, name, seen)),
        past=past,
        is_on_the_last=mode == "continual",
    )


def _tested(plan: Plan, number: int, name: str, seen: Sequence[str]) -> list[TaskConfig]:
    """The tasks that a model is tested on."""
    asked = plan.context.config.sequence
    ahead = plan.order[number : number + 1] if asked.forward_transfer and asked.mode == "continual" else []
    wanted = {*(seen if asked.full_matrix or number == len(plan.order) else [name]), *ahead}
    return [task for task in plan.tasks if domain_of(task) in wanted]


def _taught(plan: Plan, context: Context, tasks: Sequence[TaskConfig]) -> Runs:
    """A model, taught each of some tasks, once a seed."""
    config = plan.context.config
    return {
        task.name: tuple(
            Finetune.of(context.configured(replace(config, name=f"{config.name}-{task.name}", task=task)), seed)
            for seed in config.finetune.seeds
        )
        for task in tasks
    }


def _after(plan: Plan, step: Step) -> Mapping[str, Stage[Any]]:
    """What the method wants to know of a domain that was learnt."""
    context = _on_domain(plan, plan.context, step.domain).starting_from(step.training)
    return after_training(context, plan.texts[step.domain], step.past)


def _show(context: Context, finished: Finished[SequenceResult], arguments: Sequence[str]) -> Mapping[str, Any]:
    from adapt.summary import show_sequence

    show_sequence(finished.record)
    return finished.record.metrics


JOB = Job(
    kind=Kind(
        "sequence",
        "Adapts a model to one domain after another without forgetting (Continual Pre-training of Language Models).",
        sources=True,
        defaults={
            "name": "sequence",
            "method.kind": "das",
            "training.learning_rate": 1e-4,
            "training.weight_decay": 0.0,
            "training.warmup_fraction": 0.1,
            "training.global_batch_size": 248,
            "training.sequence_length": 164,
            "training.max_steps": 2580,
            "finetune.learning_rate": 3e-5,
        },
    ),
    final=sequence,
    show=_show,
    training=lambda stage: stage.model,
    first=lambda stage: stage.data,
    is_wide=True,
    is_named=True,
)
