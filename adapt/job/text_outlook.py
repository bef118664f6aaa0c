"""Describes the text of a job before anything runs: languages, words that the tokenizer knows, and copies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.corpus.files.filesystem import is_url
from adapt.corpus.legibility import Legibility, count_sample, read_legibility
from adapt.corpus.profile_sample import card_languages, profile_of, profile_texts
from adapt.corpus.text_profile import FEWEST, MOST_DUPLICATES, TextProfile, read_profile
from adapt.model.tokenize.text_tokenizer import quick_tokenizer
from adapt.runner import Record, Stage
from adapt.show.blocks import Block, FindingBlock, Findings, TextBlock
from adapt.stage.prepare_text import Prepare


@dataclass(frozen=True)
class TextOutlook:
    """Properties of a corpus, measured on a sample or taken from the record of the prepared corpus."""

    name: str
    """Name of the stage that prepares the corpus."""
    profile: TextProfile
    legibility: Legibility | None
    """How the tokenizer splits words. None if a stage makes the tokenizer, or it can only be loaded by transformers."""
    deduplicate: str
    """Value of `corpus.deduplicate`."""

    @property
    def faults(self) -> list[str]:
        """Warnings with a fix."""
        words = self.legibility.faults() if self.legibility else []
        return [*words, *self.profile.faults(self.deduplicate)]

    @property
    def wanted_deduplication(self) -> str:
        """Value of `corpus.deduplicate` that removes the copies that a warning is about; empty if there is none."""
        if self.profile.documents < FEWEST:
            return ""
        if self.profile.near_duplicates > MOST_DUPLICATES:
            return "near"
        return "exact" if self.profile.duplicates > MOST_DUPLICATES else ""

    def sentence(self) -> str:
        """Returns the corpus, its sample, and what was measured."""
        words = legibility_words(self.legibility)
        said = f"{self.name}, {self.profile.documents} documents: {self.profile.summary()}"
        return f"{said}; {words}" if words else said


def legibility_words(legibility: Legibility | None) -> str:
    """Returns how a tokenizer splits the words of a corpus, in words; empty if it was not measured."""
    if legibility is None or not legibility.words:
        return ""
    figures = [f"unknown words {legibility.unknown_share:.1%}"]
    if legibility.pieces_per_word is not None:
        figures.append(f"{legibility.pieces_per_word:.2f} tokens per word")
    if legibility.bytes_per_piece is not None:
        figures.append(f"{legibility.bytes_per_piece:.1f} bytes per token")
    return ", ".join(figures)


def text_outlooks(stages: Sequence[Stage[Any]], records: Mapping[str, Record]) -> list[TextOutlook]:
    """Measures the corpora that a job trains on, each once.

    Remote corpora and datasets that are not prepared yet are left out, because reading them takes long. They are
    measured when they are prepared.

    Args:
        stages: stages of the job.
        records: records of finished stages, keyed by key.
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
    profile = read_profile(record.metrics)
    deduplicate = stage.files.corpus.deduplicate
    return TextOutlook(stage.name, profile, read_legibility(record.metrics), deduplicate) if profile else None


def _sampled(stage: Prepare) -> TextOutlook | None:
    corpus, manifest = stage.files.corpus, stage.files.manifest
    if corpus.source == "dataset" or any(is_url(path) for path in manifest.files):
        return None
    pretrained = stage.tokens.pretrained
    texts = profile_texts(manifest, corpus)
    tokenizer = None if stage.tokens.vocabulary else quick_tokenizer(pretrained.tokenizer)
    legibility = Legibility.of(count_sample(texts, tokenizer)) if tokenizer and texts else None
    return TextOutlook(stage.name, profile_of(texts, card_languages(pretrained.model)), legibility, corpus.deduplicate)


def outlook_blocks(texts: Sequence[TextOutlook]) -> list[Block]:
    """Returns a line per corpus, and the warnings about each."""
    if not texts:
        return []
    lines = TextBlock(
        "\n".join(["Text to train on, measured on a sample:", *(f"  {each.sentence()}" for each in texts)])
    )
    faults = [FindingBlock("warning", f"{each.name}: {fault}", "warning") for each in texts for fault in each.faults]
    return [lines, *([Findings(faults)] if faults else [])]
