"""Stage `scratch` trains a new tokenizer on a domain, and makes a model with random weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.start import Start
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, TextBlock, summary
from adapt.stage.context import Tokens
from adapt.stage.text_sources import Files
from adapt.stage.vocabulary_analysis import Screening
from adapt.support.better import Less
from adapt.vocabulary.vocabulary_results import empty_corpus


@dataclass(frozen=True)
class Begun(OneModel):
    """Result of `ScratchModel`: a model with random weights.

    The stage's folder contains the model and its tokenizer.
    """

    vocabulary: int
    """Number of tokens of the new tokenizer."""
    parameters: Less[int]
    """Number of parameters of the model."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows the size of tokenizer and model, and their folder."""
        made = (
            f"Made a tokenizer with {self.vocabulary:,} tokens and a model with {self.parameters:,} random parameters."
            " The model knows nothing until it is trained."
        )
        return [*summary(made), TextBlock(f"Model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class ScratchModel(Stage[Begun]):
    """Trains a tokenizer on a corpus, and makes a model with random weights."""

    kind = "scratch"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model whose architecture and kind of tokenizer are used."""
    tokens: Tokens
    domains: Mapping[str, Files]
    screening: Screening
    """Rules for excluding documents of the domains."""

    def what(self) -> Mapping[str, Any]:
        """Returns the architecture, the text that is read, the sizes and the seed."""
        settings = self.config.vocabulary
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "size": settings.size,
            "dimensions": settings.dimensions,
            "max_megabytes": settings.max_megabytes,
            "seed": self.config.seed,
            **self.screening.what(self.domains),
        }

    def run(self, folder: Path, done: Done) -> Outcome[Begun]:
        """Trains the tokenizer in this process, and draws the weights.

        Raises:
            DataError: the corpus has no text.
            ModelError: the dimensions cannot be set.
        """
        from adapt.vocabulary.from_scratch import write_scratch

        texts, settings = self.screening.joined(self.domains, self.config, done), self.config.vocabulary
        first = next(texts, None)
        if first is None:
            raise empty_corpus(", ".join(self.domains))
        size = settings.size if isinstance(settings.size, int) else None
        every = chain([first], texts)
        start, seed = self.start.made(done), self.config.seed
        return Outcome(Begun(*write_scratch(start, every, size, settings.dimensions, seed, folder)))
