"""Prepares the text of a job, and measures properties of the text before the job runs.

The measured properties are the languages of a text, how the tokenizer splits its words, and the share of copies. This
module also builds the stages that a continual-learning method needs before and after each domain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapt.config import Config, CorpusConfig
from adapt.corpus import text_profile
from adapt.corpus.corpora import general_corpus, mixed_corpus, shared_with, trained_corpora
from adapt.corpus.files.filesystem import is_url
from adapt.corpus.files.manifest import sources_of
from adapt.corpus.profile_sample import card_languages, profile_of, profile_texts
from adapt.job.generated_text import generated_replay
from adapt.method.base import Domain
from adapt.method.table import check_method, method_of
from adapt.model.start import Start
from adapt.model.tokenize.text_tokenizer import quick_tokenizer
from adapt.runner import Record, Stage
from adapt.show.blocks import Block, FindingBlock, Findings, TextBlock
from adapt.stage.context import Context
from adapt.stage.prepare_text import Gather, Prepare, Prepared, PrepareTexts, Streamed
from adapt.stage.text_sources import Dedup, Files, TaskTexts, held_out, listed_files

GENERAL, REPLAY = "(general)", "(replay)"
"""Names of two general texts among the sources of a corpus: the text for measuring losses, and the replayed text."""


@dataclass(frozen=True)
class DomainText:
    """The prepared text of a domain."""

    whole: Stage[Prepared]
    """The domain's text as one corpus, for measuring losses."""
    sources: Mapping[str, Stage[Prepared]]
    """The domain's text for training, keyed by source."""

    @property
    def streamed(self) -> Streamed | None:
        """The domain's corpus if it is streamed during training, else None."""
        (first, *_) = self.sources.values()
        return Streamed.of(first) if isinstance(first, Prepare) and first.files.corpus.streaming else None


def general_text(context: Context) -> Prepare | None:
    """Prepares general text for measuring losses. Returns None if no general text is configured.

    If the same files are also used for training, losses are measured only on the held-out share of the files.
    """
    config, name = context.config, f"{context.config.name}-general"
    if not config.evaluation.general_paths:
        return None
    files = listed_files(context, general_corpus(config), name)
    trained = {
        field: [listed_files(context, corpus, name).manifest for name, corpus in corpora]
        for field, corpora in trained_corpora(config).items()
    }
    if context.selected:
        trained["select.pool_paths"] = [context.selected.pool.manifest]
    field = shared_with(files.manifest, trained, config.corpus.heldout_fraction)
    if field:
        files = held_out(files, config.corpus.heldout_fraction)
    return Prepare(name, files, context.tokens, config, shared_with=field or "")


def domain_text(context: Context, general: Prepare | None) -> DomainText:
    """Prepares the text of the corpus, without the documents of the general text on which losses are measured.

    If `corpus.deduplicate` is `near`, near copies of this general text are also excluded.
    """
    config = context.config
    sources = tuple(
        listed_files(context, corpus, f"{config.name}-{source}" if source else config.name, source)
        for source, corpus in sources_of(config.corpus)
    )
    dedup = deduplicated(context, sources, measured_general_files(context, general))
    prepared = {
        files.source or "domain": prepared_files(context, files, general, dedup, place)
        for place, files in enumerate(sources)
    }
    if not config.corpus.sources:
        return DomainText(prepared["domain"], prepared)
    return DomainText(Gather(config.name, prepared), prepared)


def replayed_text(
    context: Context,
    general: Prepare | None,
    unseen: TaskTexts | None = None,
    measured: Sequence[Stage[Prepared]] | None = None,
    base: Start | None = None,
    domain: Iterable[Stage[Prepared]] = (),
) -> Prepare | PrepareTexts | None:
    """Prepares general text that is mixed into the training. Returns None if no such text is configured.

    The text is read from files, or generated (mixture.replay_kind).

    Args:
        context: context of the job.
        general: the general text on which losses are measured, or None.
        unseen: texts that the replayed text must not contain.
        measured: all texts on which losses are measured. Their held-out documents are left out of the replayed text.
            None means that losses are measured on `general` only.
        base: the model that generates text to replay. None for the initial model of the context.
        domain: the domain's text, by source. Near copies of its held-out documents are left out of generated text.
    """
    if measured is None:
        measured = [general] if general else []
    if context.config.mixture.replay_kind != "files":
        return generated_replay(context, base or context.start, general, unseen, measured, domain)
    if not context.config.mixture.replay_paths:
        return None
    name = f"{context.config.name}-replay"
    files = listed_files(context, mixed_corpus(context.config, "mixture.replay"), name, REPLAY)
    return additional_text(context, files, measured, general, unseen)


def additional_text(
    context: Context,
    files: Files,
    measured: Sequence[Stage[Prepared]],
    general: Prepare | None,
    unseen: TaskTexts | None,
) -> Prepare:
    """Prepares additional text to train on, without the held-out documents of the texts in `measured`.

    If `corpus.deduplicate` is `near`, near copies of the text `general` are also excluded.
    """
    apart = measured_general_files(context, general, replay=False)
    dedup = deduplicated(context, (files,), apart, unseen) if apart else None
    return Prepare(
        files.listing.name, files, context.tokens, context.config, dedup, unseen=unseen, measured=tuple(measured)
    )


def prepared_files(
    context: Context, files: Files, general: Prepare | None, dedup: Dedup | None = None, place: int = 0
) -> Prepare:
    """Prepares one source of training text, without the documents of the general text on which losses are measured."""
    measured = (general,) if general else ()
    return Prepare(files.listing.name, files, context.tokens, context.config, dedup, place, measured=measured)


def measured_general_files(context: Context, general: Prepare | None, replay: bool = True) -> tuple[Files, ...]:
    """Lists the files of general text whose near copies a corpus must not contain.

    The list has the files of the text on which losses are measured and, if `replay` is true, of the replayed text. It
    is empty unless `corpus.deduplicate` is `near`.
    """
    config = context.config
    if config.corpus.deduplicate != "near":
        return ()
    files = [replace(general.files, source=GENERAL)] if general else []
    if replay and config.mixture.replay_paths:
        files.append(listed_files(context, mixed_corpus(config, "mixture.replay"), f"{config.name}-replay", REPLAY))
    return tuple(files)


def deduplicated(
    context: Context, sources: tuple[Files, ...], before: tuple[Files, ...] = (), unseen: TaskTexts | None = None
) -> Dedup | None:
    """Builds the stage that finds duplicate documents within and between sources. Returns None without deduplication.

    Args:
        context: context of the job.
        sources: files of the sources, in the order of `adapt.corpus.files.manifest.sources_of`.
        before: files whose documents are kept if the sources contain copies of them.
        unseen: texts that the sources must not contain.
    """
    config = context.config
    if config.corpus.deduplicate == "none":
        return None
    tokens = replace(context.tokens, vocabulary=None)  # duplicates do not depend on the vocabulary
    return Dedup(config.name, sources, before, unseen, tokens, config)


def on_one_source(config: Config, name: str, corpus: CorpusConfig) -> Config:
    """Returns the configuration with one source as its corpus, and appends the source's name to the job's name."""
    return replace(config, name=f"{config.name}-{name}", corpus=corpus)


def before_training(
    context: Context, texts: Sequence[Stage[Prepared]], general: Stage[Prepared] | None, learns_sources: bool = False
) -> Mapping[str, Stage[Any]]:
    """Builds the stages that the configured method needs before training.

    Args:
        context: context whose initial model will be trained.
        texts: text of the first domain, one stage per source.
        general: replayed general text, or None.
        learns_sources: whether each of `corpus.sources` is a domain of a sequence. If False, they are one domain.
    """
    config = context.config
    domains = config.corpus.sources if learns_sources else []
    checked = replace(config, corpus=replace(config.corpus, sources=domains))
    check_method(checked, context.start.pretrained.model)
    return method_of(context.config).before(Domain(context.config, context.start, tuple(texts), {}, general))


def after_training(context: Context, text: Stage[Prepared], past: Mapping[str, Stage[Any]]) -> Mapping[str, Stage[Any]]:
    """Builds the stages that the configured method needs after the training on a domain.

    Args:
        context: context whose initial model was trained on the domain.
        text: text of the domain.
        past: stages of the method that ran before the training on this domain.
    """
    learnt = Domain(context.config, context.start, (text,), past)
    return {**past, **method_of(context.config).after_domain(learnt)}


@dataclass(frozen=True)
class TextOutlook:
    """Properties of a corpus, measured on a sample or taken from the record of the prepared corpus."""

    name: str
    """Name of the stage that prepares the corpus."""
    profile: text_profile.TextProfile
    legibility: text_profile.Legibility | None
    """How the tokenizer splits words. None if a stage makes the tokenizer, or it can only be loaded by transformers."""
    deduplicate: str
    """Value of `corpus.deduplicate`."""

    @property
    def faults(self) -> list[str]:
        """Warnings about the text, each with a fix."""
        words = self.legibility.faults() if self.legibility else []
        return [*words, *self.profile.faults(self.deduplicate)]

    @property
    def wanted_deduplication(self) -> str:
        """Value of `corpus.deduplicate` that would remove the measured copies. Empty if there are few copies."""
        if self.profile.documents < text_profile.FEWEST:
            return ""
        if self.profile.near_duplicates > text_profile.MOST_DUPLICATES:
            return "near"
        return "exact" if self.profile.duplicates > text_profile.MOST_DUPLICATES else ""

    def sentence(self) -> str:
        """Returns a sentence with the name of the corpus, the size of the sample, and the measured properties."""
        words = legibility_words(self.legibility)
        said = f"{self.name}, {self.profile.documents} documents: {self.profile.summary()}"
        return f"{said}; {words}" if words else said


def legibility_words(legibility: text_profile.Legibility | None) -> str:
    """Describes how a tokenizer splits the words of a corpus. The text is empty if this was not measured."""
    if legibility is None or not legibility.words:
        return ""
    figures = [f"unknown words {legibility.unknown_share:.1%}"]
    if legibility.pieces_per_word is not None:
        figures.append(f"{legibility.pieces_per_word:.2f} tokens per word")
    if legibility.bytes_per_piece is not None:
        figures.append(f"{legibility.bytes_per_piece:.1f} bytes per token")
    return ", ".join(figures)


def text_outlooks(stages: Sequence[Stage[Any]], records: Mapping[str, Record]) -> list[TextOutlook]:
    """Measures the corpora that a job trains on, each corpus once.

    Remote corpora and datasets that are not prepared yet are left out, because reading them takes long. The stage that
    prepares such a corpus measures it.
    """
    found: dict[str, TextOutlook] = {}
    for stage in stages:
        if isinstance(stage, Prepare) and stage.files.corpus.heldout_fraction < 1 and stage.name not in found:
            record = records.get(stage.key)
            outlook = _recorded(stage, record) if record else _sampled(stage)
            if outlook and outlook.profile.documents:
                found[stage.name] = outlook
    return list(found.values())


def _recorded(stage: Prepare, record: Record) -> TextOutlook | None:
    profile = text_profile.read_profile(record.metrics)
    deduplicate = stage.files.corpus.deduplicate
    return (
        TextOutlook(stage.name, profile, text_profile.read_legibility(record.metrics), deduplicate) if profile else None
    )


def _sampled(stage: Prepare) -> TextOutlook | None:
    corpus, manifest = stage.files.corpus, stage.files.manifest
    if corpus.source == "dataset" or any(is_url(path) for path in manifest.files):
        return None
    pretrained = stage.tokens.pretrained
    texts = profile_texts(manifest, corpus)
    tokenizer = None if stage.tokens.vocabulary else quick_tokenizer(pretrained.tokenizer)
    legibility = (
        text_profile.Legibility.of(text_profile.count_sample(texts, tokenizer)) if tokenizer and texts else None
    )
    return TextOutlook(stage.name, profile_of(texts, card_languages(pretrained.model)), legibility, corpus.deduplicate)


def outlook_blocks(texts: Sequence[TextOutlook]) -> list[Block]:
    """Returns a line per corpus, and the warnings about each corpus."""
    if not texts:
        return []
    lines = TextBlock(
        "\n".join(["Text to train on, measured on a sample:", *(f"  {each.sentence()}" for each in texts)])
    )
    faults = [FindingBlock("warning", f"{each.name}: {fault}", "warning") for each in texts for fault in each.faults]
    return [lines, *([Findings(faults)] if faults else [])]
