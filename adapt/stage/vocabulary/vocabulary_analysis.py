"""Stage `vocabulary` measures how a tokenizer splits the words of domains, and how many tokens new words would save.

`Screening` excludes the documents that a training excludes. Stages that choose words or train new rows use it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.start import Start
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.stage.context import Tokens
from adapt.stage.prepare_text import duplicates_of
from adapt.stage.text_sources import Dedup, Files
from adapt.vocabulary.vocabulary_results import Analyzed, draw_curves
from adapt.vocabulary.word_reader import corpus_texts, measured_in


@dataclass(frozen=True)
class Screening:
    """Rules for excluding documents of the domains.

    Held-out text and the texts of `corpus.decontaminate` are always excluded, in addition to these rules.
    """

    measured: Files | None = None
    """General text on which models are measured. Its documents are not used to choose words or to train rows."""
    dedup: Dedup | None = None
    """Stage that lists duplicates. None if `corpus.deduplicate` is not set."""

    def what(self, domains: Mapping[str, Files]) -> dict[str, Any]:
        """Returns the entries of a stage's key that identify the screening. The result is empty without screening.

        The entry `screened` distinguishes new results from older ones, which did not exclude evaluation sets although
        their keys contain the digests of these sets.
        """
        return {
            **({"screened": True} if any(files.corpus.decontaminate for files in domains.values()) else {}),
            **({"measured": self.measured.what()} if self.measured else {}),
        }

    def texts(self, domains: Mapping[str, Files], megabytes: float, seed: int, done: Done) -> dict[str, Iterator[str]]:
        """Returns an iterator over the documents of each domain. It reads the documents when they are requested.

        Args:
            domains: files of the domains, in the order of the sources of `dedup`.
            megabytes: approximate amount of text to read per domain [MB].
            seed: seed of the order in which parts of a domain are read.
            done: the finished stages.

        Raises:
            DataError: a file is broken, or too many records are.
        """
        measured = measured_in(self.measured.manifest, self.measured.corpus) if self.measured else None
        return {
            name: corpus_texts(
                files.manifest, files.corpus, megabytes, seed, measured, duplicates_of(self.dedup, place, done)
            )
            for place, (name, files) in enumerate(domains.items())
        }

    def joined(self, domains: Mapping[str, Files], config: Config, done: Done) -> Iterator[str]:
        """Returns documents of all domains, one domain after another. The domains share `vocabulary.max_megabytes`."""
        megabytes = config.vocabulary.max_megabytes / len(domains)
        return chain.from_iterable(self.texts(domains, megabytes, config.seed, done).values())


def whole_text(files: Files, config: Config) -> Iterator[str]:
    """Returns documents of files without screening, up to `vocabulary.max_megabytes`."""
    return corpus_texts(files.manifest, files.corpus, config.vocabulary.max_megabytes, config.seed)


GENERAL = "(general)"
"""Name of general text among the domains."""


@dataclass(frozen=True, eq=False)
class AnalyzeVocabulary(Stage[Analyzed]):
    """Counts the words of each domain, and analyses how a tokenizer splits them."""

    kind = "vocabulary"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model whose tokenizer and dimensions are used."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """Files of each domain, keyed by domain. General text comes first, if there is any."""
    screening: Screening
    """Rules for excluding documents of the domains. General text is read completely."""

    def what(self) -> Mapping[str, Any]:
        """Returns the model, the tokenizer and the text that is read.

        The objective and the sequence length are included, because they determine the estimated compute.
        """
        config = self.config
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "min_count": config.vocabulary.min_count,
            "max_megabytes": config.vocabulary.max_megabytes,
            "objective": [config.objective.kind, config.objective.mask_fraction],
            "sequence_length": config.training.sequence_length,
            **self.screening.what(self.domains),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Analyzed]:
        """Counts the words in this process, and draws the curves.

        Raises:
            DataError: a domain has no words.
        """
        from adapt.vocabulary.analysis import analyze_domains

        tokens, found = analyze_domains(self.config, self.start.made(done), self._texts(done), GENERAL)
        draw_curves(found, folder / "vocabulary.png")
        return Outcome(Analyzed(tokens, found))

    def _texts(self, done: Done) -> dict[str, Iterator[str]]:
        domains = {name: files for name, files in self.domains.items() if name != GENERAL}
        texts = self.screening.texts(domains, self.config.vocabulary.max_megabytes, self.config.seed, done)
        general = self.domains.get(GENERAL)
        return {**({GENERAL: whole_text(general, self.config)} if general else {}), **texts}
