"""Stage `vocabulary`: how a tokenizer splits the words of domains, and what more tokens would save.

`Screening` leaves out of the text of domains what a training leaves out; all stages about vocabulary read by it.
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


@dataclass(frozen=True)
class Screening:
    """What the text of the domains leaves out besides held-out text and the texts of `corpus.decontaminate`."""

    measured: Files | None = None
    """General text that is measured: no document of it is chosen from or taught on."""
    dedup: Dedup | None = None
    """Says which documents are copies, where `corpus.deduplicate` asks for it."""

    def what(self, domains: Mapping[str, Files]) -> dict[str, Any]:
        """Returns what the keys of stages hold of the screening; nothing where nothing is screened.

        Before evaluation sets were screened here, keys held their digests already. "screened" tells such results apart.
        """
        return {
            **({"screened": True} if any(files.corpus.decontaminate for files in domains.values()) else {}),
            **({"measured": self.measured.what()} if self.measured else {}),
        }

    def texts(self, domains: Mapping[str, Files], megabytes: float, seed: int, done: Done) -> dict[str, Iterator[str]]:
        """Returns the documents of each domain, which are read as they are iterated over.

        Args:
            domains: their files, in the order in which they were deduplicated.
            megabytes: about this much text is read of each domain.
            seed: of the order in which parts of a domain are read.
            done: the finished stages.

        Raises:
            DataError: a file is broken, or too many records are.
        """
        from adapt.vocabulary.corpus_texts import corpus_texts, measured_in

        measured = measured_in(self.measured.manifest, self.measured.corpus) if self.measured else None
        return {
            name: corpus_texts(
                files.manifest, files.corpus, megabytes, seed, measured, duplicates_of(self.dedup, place, done)
            )
            for place, (name, files) in enumerate(domains.items())
        }

    def joined(self, domains: Mapping[str, Files], config: Config, done: Done) -> Iterator[str]:
        """Returns the documents of all domains, one domain after another, which share `vocabulary.max_megabytes`."""
        megabytes = config.vocabulary.max_megabytes / len(domains)
        return chain.from_iterable(self.texts(domains, megabytes, config.seed, done).values())


def whole_text(files: Files, config: Config) -> Iterator[str]:
    """Returns documents of some files of which nothing is screened, up to `vocabulary.max_megabytes`."""
    from adapt.vocabulary.corpus_texts import corpus_texts

    return corpus_texts(files.manifest, files.corpus, config.vocabulary.max_megabytes, config.seed)


GENERAL = "(general)"
"""What general text is called among the domains."""


@dataclass(frozen=True, eq=False)
class AnalyzeVocabulary(Stage[Analyzed]):
    """The words of each domain, counted and looked at with a tokenizer."""

    kind = "vocabulary"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """The model, for its tokenizer and its dimensions."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """The text of each domain. General text comes first, if there is some."""
    screening: Screening
    """What the domains leave out; general text is read whole."""

    def what(self) -> Mapping[str, Any]:
        """Tokenizer, how text is read and how much of it; the model's dimensions and the objective, for the compute."""
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
        """Counts in this process, and draws the curves.

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
