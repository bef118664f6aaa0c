"""Stage `scratch`: a tokenizer and a model from nothing, for a domain."""

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
    """A model that knows nothing. It is in the stage's folder, with its tokenizer."""

    vocabulary: int
    """Tokens of the tokenizer that was trained."""
    parameters: Less[int]
    """Trained numbers of the model."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what was made, and where it is."""
        made = (
            f"Made a tokenizer with {self.vocabulary:,} tokens and a model with {self.parameters:,} random parameters."
            " The model knows nothing until it is trained."
        )
        return [*summary(made), TextBlock(f"Model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class ScratchModel(Stage[Begun]):
    """A tokenizer that was trained on a corpus, and random weights."""

    kind = "scratch"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """The model whose architecture and kind of tokenizer are taken."""
    tokens: Tokens
    domains: Mapping[str, Files]
    screening: Screening
    """What the domains leave out."""

    def what(self) -> Mapping[str, Any]:
        """The architecture, what is read and how much, sizes and seed."""
        asked = self.config.vocabulary
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "size": asked.size,
            "dimensions": asked.dimensions,
            "max_megabytes": asked.max_megabytes,
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

        texts, asked = self.screening.joined(self.domains, self.config, done), self.config.vocabulary
        first = next(texts, None)
        if first is None:
            raise empty_corpus(", ".join(self.domains))
        size = asked.size if isinstance(asked.size, int) else None
        every = chain([first], texts)
        start, seed = self.start.made(done), self.config.seed
        return Outcome(Begun(*write_scratch(start, every, size, asked.dimensions, seed, folder)))
