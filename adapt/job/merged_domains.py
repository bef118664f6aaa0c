"""A sequence whose domains are learnt apart and merged: method `merge`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from adapt.config import Config
from adapt.errors import ConfigError
from adapt.job.general import before_training
from adapt.job.sequence_steps import Setup, on_domain, taught, tested
from adapt.job.text import replayed_text
from adapt.merge.base import Merging
from adapt.merge.table import MERGERS, merging_of
from adapt.model.start import Start
from adapt.stage.context import Context
from adapt.stage.domains.matrices import Step
from adapt.stage.evaluate import Evaluate
from adapt.stage.merge import Merge
from adapt.stage.train import Train


def merged_domains(setup: Setup) -> Iterator[Step]:
    """After each domain the merge of all models so far, each of which was trained from the model to begin with.

    A domain that is added trains one model and merges once more; another way of merging trains nothing.

    Raises:
        ConfigError: section `merge` does not suit as many models.
    """
    before_training(setup.context, [setup.texts[setup.order[0]]], None)
    merging_of_domains(setup.context.config, len(setup.order))  # what is wrong is said before the first is trained
    models: list[Start] = []
    for number, name in enumerate(setup.order, start=1):
        domain = on_domain(setup, setup.context, name)
        training = Train.of(domain, {"domain": setup.texts[name]}, replayed_text(domain, setup.general))
        models.append(setup.context.start.after(training))
        yield _merged_step(setup, domain, number, training, models)


def _merged_step(setup: Setup, domain: Context, number: int, training: Train, models: Sequence[Start]) -> Step:
    """The merge of the first models, its losses, and its tasks."""
    config, seen = setup.context.config, setup.order[:number]
    merging = merging_of_domains(config, number)
    merge = Merge(f"{config.name}-{number}", config, setup.context.start, tuple(models), merging)
    context = setup.context.starting_from(merge)
    texts = {**{name: setup.texts[name] for name in seen}, **setup.beside}
    return Step(
        learnt=number,
        domain=seen[-1],
        training=training,
        export=None,
        merged=merge,
        others=Evaluate.of(context, f"after-{number}", texts),
        runs=taught(setup, context, tested(setup, number, seen[-1], seen)),
        past={},
        is_on_the_last=False,
    )


def merging_of_domains(config: Config, models: int) -> Merging:
    """The merge of the models of the first domains.

    Args:
        config: of the sequence.
        models: how many domains were learnt.

    Raises:
        ConfigError: the way of merging takes no such models, or there are several shares or too few weights.
    """
    section, most = config.merge, MERGERS[config.merge.kind].models[1]
    if most is not None:
        fit = ", ".join(name for name, merger in MERGERS.items() if merger.models[1] is None)
        raise ConfigError(
            f"method.kind is merge, but merge.kind {section.kind} takes no more than {most}"
            f" {'model' if most == 1 else 'models'}",
            f"set merge.kind to one of {fit}",
        )
    if section.models:
        raise ConfigError(
            "merge.models is set, but with method.kind merge the models are those of the domains", "leave it out"
        )
    if isinstance(section.weights, list) and len(section.weights) < models:
        raise ConfigError(
            f"merge.weights has {len(section.weights)} numbers, but there are {models} domains", "give one for each"
        )
    weights = section.weights[:models] if isinstance(section.weights, list) else section.weights
    merging = merging_of(replace(config, merge=replace(section, weights=weights)), models)
    if len(merging.shares) > 1:
        raise ConfigError(
            f"merge.shares is {list(merging.shares)}, but a sequence hands on one model",
            "give one share; dontstop merge makes a model for each of several",
        )
    return merging
