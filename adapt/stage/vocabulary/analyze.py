"""Stage `vocabulary`: how a tokenizer breaks the words of domains, and what more tokens would save."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.errors import DataError
from adapt.model.size import model_size
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.stage.context import Tokens
from adapt.stage.text.listing import Files
from adapt.stage.vocabulary.screened import Screening
from adapt.train.capacity.flops import workload
from adapt.vocabulary.results import Analyzed, DomainWords

GENERAL = "(general)"
"""What general text is called among the domains."""


@dataclass(frozen=True, eq=False)
class AnalyzeVocabulary(Stage[Analyzed]):
    """The words of each domain, counted and looked at with a tokenizer."""

    kind = "vocabulary"

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

    def needs(self) -> Mapping[str, float]:
        """It takes one CPU."""
        return {"CPU": 1}

    def run(self, folder: Path, done: Done) -> Outcome[Analyzed]:
        """Counts in this process, and draws the curves.

        Raises:
            DataError: a domain has no words.
        """
        from adapt.model.literal import load_text_tokenizer
        from adapt.vocabulary.analysis import analyze_words
        from adapt.vocabulary.picture import draw_curves
        from adapt.vocabulary.words import WordReader

        config, start = self.config, self.start.made(done)
        tokenizer = load_text_tokenizer(start)
        reader = WordReader(tokenizer.backend_tokenizer)
        names = {number: reader.surface(piece) for piece, number in tokenizer.get_vocab().items()}
        size = model_size(start.model)
        found: dict[str, DomainWords] = {}
        for name, texts in self._texts(done).items():
            work = workload(config.objective, config.training.sequence_length)
            words = analyze_words(texts, reader, names, config.vocabulary.min_count, size, work, found.get(GENERAL))
            if words is None:
                raise empty_corpus(name)
            found[name] = words
        draw_curves(found, folder / "vocabulary.png")
        return Outcome(Analyzed(len(tokenizer), found))

    def _texts(self, done: Done) -> dict[str, Iterator[str]]:
        from adapt.vocabulary.texts import corpus_texts

        megabytes, seed = self.config.vocabulary.max_megabytes, self.config.seed
        domains = {name: files for name, files in self.domains.items() if name != GENERAL}
        texts = self.screening.texts(domains, megabytes, seed, done)
        if general := self.domains.get(GENERAL):
            return {GENERAL: corpus_texts(general.manifest, general.corpus, megabytes, seed), **texts}
        return texts


def empty_corpus(name: str) -> DataError:
    """The error for a corpus without words."""
    return DataError(
        f"the text of {name} has no words after cleaning, beside what is held out",
        "check corpus.paths, corpus.text_field and corpus.cleaning",
    )
