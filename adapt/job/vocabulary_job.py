"""Builds the vocabulary job: measures how the tokenizer splits words, and makes models with a changed vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapt.config import ModelConfig
from adapt.config.job_config import Kind
from adapt.config.kinds import Kinds
from adapt.corpus.corpora import general_corpus
from adapt.corpus.files.sources import sources_of
from adapt.job.job_run import Job
from adapt.job.job_text import deduplicated, general_text, measured_general_files
from adapt.model.additions.table import refuse_additions
from adapt.model.architecture import PATTERNS
from adapt.model.locate import CONFIG, read_json
from adapt.model.start import Start
from adapt.runner import Stage
from adapt.stage.context import Context, located
from adapt.stage.text_sources import Files, held_out, listed_files
from adapt.stage.vocabulary.vocabulary_analysis import GENERAL, AnalyzeVocabulary, Screening
from adapt.stage.vocabulary.vocabulary_changes import WAYS, ExtendVocabulary, ScratchModel, TeachRows, TrimVocabulary
from adapt.support.errors import ConfigError, nearest


def change_vocabulary(context: Context) -> Stage[Any]:
    """Builds the last stage of the configured `vocabulary.action`.

    Raises:
        ConfigError, DataError: the corpus cannot be read.
    """
    return ACTIONS.load(context.config.vocabulary.action)(context)


def analyze(context: Context) -> AnalyzeVocabulary:
    """Builds the stage that measures how the tokenizer splits the words of each source and of general text."""
    config = context.config
    domains = domain_files(context)
    if config.evaluation.general_paths:
        general = listed_files(context, general_corpus(config), f"{config.name}-general")
        domains = {GENERAL: held_out(general, 0.0), **domains}
    return AnalyzeVocabulary(config.name, config, context.start, context.tokens, domains, screening(context))


def domain_files(context: Context) -> dict[str, Files]:
    """Lists the files of each source, keyed by the source's name. A corpus without sources is called `corpus`."""
    name = context.config.name
    return {
        source or "corpus": listed_files(context, corpus, f"{name}-{source}" if source else name, source)
        for source, corpus in sources_of(context.config.corpus)
    }


def screening(context: Context) -> Screening:
    """Returns the text that is left out of the corpus. It is the same text that a training on the corpus leaves out.

    Raises:
        ConfigError, DataError: `adapt.job.job_text.general_text` raises an error.
    """
    general, sources = general_text(context), tuple(domain_files(context).values())
    dedup = deduplicated(context, sources, measured_general_files(context, general))
    return Screening(general.files if general else None, dedup)


def extend(context: Context) -> ExtendVocabulary | TeachRows:
    """Builds the stage that adds words of the corpus as tokens.

    Raises:
        ConfigError: `vocabulary.candidates` is neither a known way nor a file, or needs general text and none is
            configured. Or the model does not support a module.
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
    _check_module(context)
    general = listed_files(context, general_corpus(config), f"{config.name}-general") if asked == "divergence" else None
    listed = context.digests.of(file) if asked not in WAYS else None
    extended = ExtendVocabulary(
        name=config.name,
        config=config,
        start=context.start,
        tokens=context.tokens,
        domains=domain_files(context),
        general=held_out(general, 0.0) if general else None,
        listed=listed,
        donor=_donor(context),
        screening=screening(context),
    )
    made: ExtendVocabulary | TeachRows = extended
    for way, is_wanted in (
        ("distill", config.vocabulary.init == "distill"),
        ("warmup", config.vocabulary.warmup_steps),
    ):
        if is_wanted:
            name = f"{config.name}-{way}"
            made = TeachRows(name, config, way, context.start, extended, made, extended.domains, extended.screening)
    return made


def _check_module(context: Context) -> None:
    config = context.config
    if config.vocabulary.module is None:
        return
    kind = read_json(context.start.pretrained.model / CONFIG).get("model_type")
    if config.objective.kind == "causal" or kind not in PATTERNS:
        raise ConfigError(
            f"vocabulary.module {config.vocabulary.module} goes with encoders whose layers are known, and not with"
            f" {kind} models trained by objective.kind {config.objective.kind}",
            "leave vocabulary.module unset, or choose a model like BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT",
        )
    if config.vocabulary.init == "distill":
        raise ConfigError(
            "vocabulary.init distill compares the model's states before and after the extension, but an untrained"
            " module changes all of them",
            "take another vocabulary.init, or leave vocabulary.module unset",
        )


def _donor(context: Context) -> Start | None:
    asked = context.config.vocabulary
    if (asked.init == "omp") != (asked.donor is not None):
        raise ConfigError(
            "vocabulary.init omp and vocabulary.donor go together, and only one of them is set",
            "name a model that knows the domain's words as vocabulary.donor, or take another vocabulary.init",
        )
    if asked.donor is None:
        return None
    trusted = context.config.model.trust_remote_code
    return located(ModelConfig(path=asked.donor, trust_remote_code=trusted), context.digests)


def trim(context: Context) -> TrimVocabulary:
    """Builds the stage that removes the tokens that no text uses.

    Raises:
        ConfigError: `vocabulary.keep` is not a file.
        ModelError: the model has additional modules.
    """
    refuse_additions(context.start.pretrained.model, "trimmed")
    config, keep = context.config, context.config.vocabulary.keep
    texts = {name: _whole(files) for name, files in domain_files(context).items()}
    if config.evaluation.general_paths:
        texts[GENERAL] = held_out(listed_files(context, general_corpus(config), f"{config.name}-general"), 0.0)
    if keep is not None and not Path(keep).expanduser().is_file():
        raise ConfigError(f"vocabulary.keep: there is no file {keep}", "correct the path")
    kept = context.digests.of(Path(keep).expanduser()) if keep else None
    return TrimVocabulary(config.name, config, context.start, context.tokens, texts, kept)


def _whole(files: Files) -> Files:
    """Returns the files with nothing held out, because trimming must also keep tokens of text that is only measured."""
    return replace(files, corpus=replace(files.corpus, heldout_fraction=0.0, decontaminate=[]))


def scratch(context: Context) -> ScratchModel:
    """Builds the stage that trains a tokenizer on the corpus and makes a model with random weights for this tokenizer.

    Raises:
        ConfigError: `vocabulary.size` is `elbow`, which needs existing tokens.
        ModelError: the model has additional modules.
    """
    refuse_additions(context.start.pretrained.model, "built from scratch")
    config = context.config
    if config.vocabulary.size == "elbow":
        raise ConfigError("vocabulary.size elbow limits words to add, but scratch adds none", "give a number of tokens")
    return ScratchModel(config.name, config, context.start, context.tokens, domain_files(context), screening(context))


ACTIONS: Kinds[Callable[[Context], Stage[Any]]] = Kinds(
    "vocabulary.action",
    {name: f"{__name__}:{name}" for name in ("analyze", "extend", "trim", "scratch")},
)
"""The functions of this file that build the last stage, keyed by action."""


def with_action(arguments: Sequence[str]) -> list[str]:
    """Replaces the first word of a command line by the option `--vocabulary.action`, if the word names an action."""
    if arguments and not arguments[0].startswith("-"):
        return [f"--vocabulary.action={arguments[0]}", *arguments[1:]]
    return list(arguments)


VOCABULARY_JOB = Job(
    kind=Kind(
        "vocabulary",
        "Measures how the model's tokenizer breaks a domain's words, and changes its vocabulary.",
        not_rtd="changes the tokens of a model and not those of its generator",
        defaults={"name": "vocabulary"},
    ),
    final=change_vocabulary,
    training=lambda stage: None if isinstance(stage, AnalyzeVocabulary) else stage,
    own_tokenizer=True,
)
