"""The model's vocabulary and the words of a domain."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adapt.config.kinds import Kind
from adapt.corpus.files.sources import sources_of
from adapt.corpus.roles import general_corpus
from adapt.errors import ConfigError
from adapt.job.job import Job
from adapt.nearest import nearest
from adapt.runner import Finished, Stage
from adapt.stage.context import Context
from adapt.stage.text.listing import Files, held_out, listed_files
from adapt.stage.vocabulary.analyze import GENERAL, AnalyzeVocabulary
from adapt.stage.vocabulary.extend import WAYS, ExtendVocabulary


def change_vocabulary(context: Context) -> Stage[Any]:
    """The stage of `vocabulary.action`.

    Raises:
        ConfigError, DataError: the corpus cannot be read.
    """
    return ACTIONS[context.config.vocabulary.action](context)


def analyze(context: Context) -> AnalyzeVocabulary:
    """The words of each source, and of general text."""
    config = context.config
    domains = domain_files(context)
    if config.evaluation.general_paths:
        general = listed_files(context, general_corpus(config), f"{config.name}-general")
        domains = {GENERAL: held_out(general, 0.0), **domains}
    return AnalyzeVocabulary(config.name, config, context.start, context.tokens, domains)


def domain_files(context: Context) -> dict[str, Files]:
    """The files of each source by its name; those of a corpus that is one are called `corpus`."""
    name = context.config.name
    return {
        source or "corpus": listed_files(context, corpus, f"{name}-{source}" if source else name, source)
        for source, corpus in sources_of(context.config.corpus)
    }


def extend(context: Context) -> ExtendVocabulary:
    """Words of the corpus become tokens of the model.

    Raises:
        ConfigError: `vocabulary.candidates` is no way and no file, or wants general text and there is none.
    """
    config, asked = context.config, context.config.vocabulary.candidates
    file = Path(asked).expanduser()
    if asked not in WAYS and not file.is_file():
        raise ConfigError(
            f"vocabulary.candidates: {asked} is neither {', '.join(WAYS)} nor a file", nearest(asked, WAYS)
        )
    if asked == "divergence" and not config.evaluation.general_paths:
        raise ConfigError(
            "vocabulary.candidates divergence compares the corpus with general text, and there is none",
            "name some in evaluation.general_paths",
        )
    general = listed_files(context, general_corpus(config), f"{config.name}-general") if asked == "divergence" else None
    listed = context.digests.of(file) if asked not in WAYS else None
    return ExtendVocabulary(
        name=config.name,
        config=config,
        start=context.start,
        tokens=context.tokens,
        domains=domain_files(context),
        general=held_out(general, 0.0) if general else None,
        listed=listed,
    )


ACTIONS: dict[str, Callable[[Context], Stage[Any]]] = {"analyze": analyze, "extend": extend}
"""What `vocabulary.action` may be."""


def told(arguments: Sequence[str]) -> list[str]:
    """A command line whose first word may name the action."""
    if arguments and not arguments[0].startswith("-"):
        return [f"--vocabulary.action={arguments[0]}", *arguments[1:]]
    return list(arguments)


def _show(context: Context, finished: Finished[Any], arguments: Sequence[str]) -> Mapping[str, Any]:
    from adapt.summary import show_extended, show_vocabulary

    if finished.record.stage == AnalyzeVocabulary.kind:
        show_vocabulary(finished.record)
    else:
        show_extended(finished.record)
    return finished.record.metrics


JOB = Job(
    kind=Kind(
        "vocabulary",
        "Measures how the model's tokenizer breaks a domain's words, and changes its vocabulary.",
        defaults={"name": "vocabulary"},
    ),
    final=change_vocabulary,
    show=_show,
    training=lambda stage: None if isinstance(stage, AnalyzeVocabulary) else stage,
    place=".",
    own_tokenizer=True,
)
