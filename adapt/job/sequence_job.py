"""Builds the sequence job, which adapts a model to one domain after another, or merges one model per domain."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from adapt.config import Config
from adapt.config.job_config import Kind
from adapt.job import generated_text, sequence_steps
from adapt.job.job_run import Job
from adapt.job.job_text import before_training, general_text, replayed_text
from adapt.merge.merger import Merging
from adapt.merge.table import MERGERS, merging_of
from adapt.method.table import check_method, method_of
from adapt.model.start import Start
from adapt.stage import finetuning, merge_stage, model_evaluation, prepare_text
from adapt.stage.benchmarks import BenchmarkedModel, CompareBenchmarks
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence as SequenceStage
from adapt.stage.sequence_matrices import Step
from adapt.stage.train import Train
from adapt.support.errors import ConfigError


def merged_domains(setup: sequence_steps.Setup) -> Iterator[Step]:
    """Builds one step per domain. Each step trains a model on its domain, and merges all models trained so far.

    Each training stage starts from the first model of the sequence. If a domain is added, only one model is trained
    before the models are merged again. If only the settings of the merge change, no model is trained.
    """
    before_training(setup.context, [setup.texts[setup.order[0]]], None, learns_sources=True)
    weights, domains = setup.context.config.merge.weights, len(setup.order)
    if isinstance(weights, list) and len(weights) != domains:
        raise ConfigError(
            f"merge.weights has {len(weights)} numbers, but there are {domains} domains", "give one for each"
        )
    merging_of_domains(setup.context.config, domains)  # called early to raise errors before any training
    models: list[Start] = []
    for number, name in enumerate(setup.order, start=1):
        domain = sequence_steps.on_domain(setup, setup.context, name)
        training = Train.of(
            domain,
            {"domain": setup.texts[name]},
            replayed_text(domain, setup.general, domain=[setup.texts[name]]),
            general=setup.general,
            measured=sequence_steps.watched_texts(setup, name),
        )
        models.append(setup.context.start.after(training))
        yield _merged_step(setup, domain, number, training, models)


def _merged_step(
    setup: sequence_steps.Setup, domain: Context, number: int, training: Train, models: Sequence[Start]
) -> Step:
    """Builds the stages that merge the models trained so far, and measure the merged model's losses and task scores."""
    config, seen = setup.context.config, setup.order[:number]
    merging = merging_of_domains(config, number)
    merge = merge_stage.Merge(f"{config.name}-{number}", config, setup.context.start, tuple(models), merging)
    context = setup.context.starting_from(merge)
    texts = {**{name: setup.texts[name] for name in seen}, **setup.beside}
    return Step(
        learnt=number,
        domain=seen[-1],
        training=training,
        export=None,
        merged=merge,
        others=model_evaluation.Evaluate.of(context, f"after-{number}", texts),
        runs=sequence_steps.finetuning_after(setup, context, sequence_steps.tested(setup, number, seen[-1], seen)),
        past={},
        is_on_the_last=False,
    )


def merging_of_domains(config: Config, models: int) -> Merging:
    """Returns the settings for merging the models of the domains learned so far."""
    section, most = config.merge, MERGERS.load(config.merge.kind).models[1]
    if most is not None:
        fit = ", ".join(name for name in MERGERS if MERGERS.load(name).models[1] is None)
        raise ConfigError(
            f"method.kind is merge, but merge.kind {section.kind} takes no more than {most}"
            f" {'model' if most == 1 else 'models'}",
            f"set merge.kind to one of {fit}",
        )
    if section.models:
        raise ConfigError(
            "merge.models is set, but method.kind merge merges the models of the sequence's domains",
            "remove merge.models",
        )
    weights = section.weights[:models] if isinstance(section.weights, list) else section.weights
    merging = merging_of(replace(config, merge=replace(section, weights=weights)), models)
    if len(merging.shares) > 1:
        raise ConfigError(
            f"merge.shares is {list(merging.shares)}, but a sequence continues with one merged model",
            "give one share; only dontstop merge makes a model for each of several shares",
        )
    return merging


def sequence_stages(context: Context) -> SequenceStage:
    """Builds the stages of all domains of a sequence.

    Each domain has the method's stages before training, the training stage, the method's stages after training, the
    export, held-out losses, and fine-tuning on the tasks of all domains so far. Each task is learnt by a separate copy
    of the model (arXiv 2302.03241, section 4). Every stage depends only on earlier domains, so adding a domain at the
    end does not rerun any stage. If two orders begin with the same domains, the second sequence reuses the stages of
    these domains.
    """
    generated_text.refuse_rewriting(context.config, "sequence")
    order = sequence_steps.check_domains(context.config)
    config = sequence_steps.in_its_mode(context.config)
    context = context.configured(config)
    general = general_text(context)
    texts, context = sequence_steps.domain_texts(context, order, general), context.redrawn()
    setup = sequence_steps.Setup(context, order, texts, general, sequence_steps.tasks_of(config, order))
    before = {
        name: model_evaluation.Evaluate.of(context, "before", {"domain": text, **setup.beside})
        for name, text in setup.texts.items()
    }
    ways = {"continual": _one_after_another, "separate": _each_alone, "joint": _all_at_once}
    learnt = merged_domains if method_of(config).is_merged_after else ways[config.sequence.mode]
    steps = tuple(learnt(setup))
    return SequenceStage(
        name=config.name,
        config=config,
        order=tuple(order),
        owners={task.name: sequence_steps.domain_of(task) for task in setup.tasks},
        texts=setup.texts,
        tasks={task.name: finetuning.task_of(context, task) for task in setup.tasks},
        before=before,
        untaught=sequence_steps.finetuning_after(setup, context, setup.tasks)
        if config.sequence.forward_transfer
        else {},
        steps=steps,
        past=sequence_steps.measurements_after(setup, steps[-1]) if config.sequence.mode == "continual" else {},
        benchmarks=_benchmarks(context, steps),
    )


def _benchmarks(context: Context, steps: Sequence[Step]) -> CompareBenchmarks | None:
    """Builds the stage that compares the base model and the later models on standard tasks, if tasks are configured."""
    models = {"base": context}
    for step in steps:
        models[f"after {step.domain}" if step.domain else "after all"] = context.starting_from(
            step.merged or step.training
        )
    return CompareBenchmarks.of(
        context.config, {name: BenchmarkedModel.of(of, name.replace(" ", "-")) for name, of in models.items()}
    )


def _one_after_another(setup: sequence_steps.Setup) -> Iterator[Step]:
    """Builds one training stage per domain. Each stage starts from the model of the previous domain."""
    context = setup.context
    first = [setup.texts[setup.order[0]]]
    replay = replayed_text(context, setup.general, domain=first)
    past = before_training(context, first, replay, learns_sources=True)
    for number, name in enumerate(setup.order, start=1):
        domain = sequence_steps.with_rules(setup, sequence_steps.on_domain(setup, context, name), number)
        training = Train.of(
            domain,
            {"domain": setup.texts[name]},
            replayed_text(
                domain,
                setup.general,
                base=setup.context.start,
                domain=[setup.texts[each] for each in setup.order[:number]],
            ),
            past,
            general=setup.general,
            recalled=sequence_steps.recalled_texts(setup, number),
            domain=name,
            measured=sequence_steps.watched_texts(setup, name, setup.order[: number - 1]),
        )
        step = sequence_steps.sequence_step(setup, domain, number, name, training, past)
        yield step
        context, past = context.starting_from(step.training), sequence_steps.measurements_after(setup, step)


def _each_alone(setup: sequence_steps.Setup) -> Iterator[Step]:
    """Builds one training stage per domain. All stages start from the first model of the sequence."""
    check_method(setup.context.config, setup.context.start.pretrained.model)
    for number, name in enumerate(setup.order, start=1):
        domain = sequence_steps.on_domain(setup, setup.context, name)
        replay = replayed_text(domain, setup.general, domain=[setup.texts[name]])
        training = Train.of(
            domain,
            {"domain": setup.texts[name]},
            replay,
            domain=name,
            general=setup.general,
            measured=sequence_steps.watched_texts(setup, name),
        )
        yield sequence_steps.sequence_step(setup, domain, number, name, training, {})


def _all_at_once(setup: sequence_steps.Setup) -> Iterator[Step]:
    """Builds one training stage on all domains mixed, as long as the separate stages of all domains together."""
    config, training = setup.context.config, setup.context.config.training
    given = {name: getattr(training, name) for name in ("max_steps", "max_tokens", "max_flops")}
    domains = len(setup.order)
    limits = {name: value * domains for name, value in given.items() if value}
    phases = [
        replace(phase, steps=phase.steps and phase.steps * domains, tokens=phase.tokens and phase.tokens * domains)
        for phase in training.phases
    ]
    sources = [source for source in config.corpus.sources if source.name in setup.order]
    corpus = replace(config.corpus, sources=sources)
    training = replace(training, phases=phases, **limits)
    joint = setup.context.configured(replace(config, corpus=corpus, training=training))
    texts = sequence_steps.as_listed(config, setup.texts)
    watched = {"domain": prepare_text.Gather(config.name, texts), **setup.beside}
    replay = replayed_text(joint, setup.general, domain=texts.values())
    stage = Train.of(joint, texts, replay, general=setup.general, measured=watched)
    yield sequence_steps.sequence_step(setup, joint, len(setup.order), "", stage, {})


SEQUENCE_JOB = Job(
    kind=Kind(
        "sequence",
        "Adapts a model to one domain after another without forgetting (Continual Pre-training of Language Models).",
        sources=True,
        not_rtd="measures forgetting by losses on predicted tokens, and whose methods do not support a generator",
        defaults={
            "name": "sequence",
            "method.kind": "replay",
            "replay.fraction": 0.25,
            "training.learning_rate": 1e-4,
            "training.weight_decay": 0.0,
            "training.warmup_fraction": 0.1,
            "training.global_batch_size": 248,
            "training.sequence_length": 164,
            "training.max_steps": 2580,
            "finetune.learning_rate": 3e-5,
        },
    ),
    final=sequence_stages,
    training=lambda stage: stage.model,
    first=lambda stage: stage.data,
    is_wide=True,
    is_named=True,
)
