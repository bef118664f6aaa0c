"""Stage `trim`: a model and a tokenizer without the tokens that a domain never uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.additions.table import refuse_additions
from adapt.model.start import Start
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, TextBlock, summary
from adapt.stage.context import Tokens
from adapt.stage.preflight import check_weights
from adapt.stage.text_sources import Files
from adapt.stage.vocabulary_analysis import whole_text
from adapt.support.better import More
from adapt.support.errors import ConfigError
from adapt.vocabulary.vocabulary_results import compute_saved


@dataclass(frozen=True)
class TrimmedVocabulary(OneModel):
    """What is left. The model and the tokenizer are in the stage's folder."""

    before: int
    """Tokens that there were."""
    vocabulary: int
    """Tokens that there are."""
    used: int
    """Different tokens of the text; the others are kept for other reasons."""
    parameters_saved: More[int]
    """Numbers of embeddings and head that the model has no more."""
    compute_saved: More[float | None] = None
    """Share of a training's FLOPs that the same text saves, the head being smaller; None where the model's dimensions
    cannot be told."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what remains of the vocabulary, and where the model is."""
        said = (
            f"Removed {self.before - self.vocabulary:,} of {self.before:,} tokens, which your text does not use:"
            f" the model has {self.parameters_saved:,} parameters fewer."
        )
        kept = f"{self.vocabulary:,} tokens remain. {self.used:,} of them occur in the text."
        lines = [kept, *compute_saved(self.compute_saved), f"Model and tokenizer: {record.path}"]
        return [*summary(said), *(TextBlock(line) for line in lines)]


@dataclass(frozen=True, eq=False)
class TrimVocabulary(Stage[TrimmedVocabulary]):
    """A model that has only the tokens which some texts use."""

    kind = "trim"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """The model."""
    tokens: Tokens
    texts: Mapping[str, Files]
    """The text whose tokens stay: held-out text and evaluation texts too, which would otherwise be full of unknown
    tokens. No word is chosen from it and no row learns from it."""
    kept: str | None
    """The digest of the file of further text whose tokens stay; None for no file."""

    def what(self) -> Mapping[str, Any]:
        """The model, and what is read and how much."""
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "texts": {name: files.what() for name, files in self.texts.items()},
            "max_megabytes": self.config.vocabulary.max_megabytes,
            "keep": self.kept,
            "seed": self.config.seed,
        }

    def run(self, folder: Path, done: Done) -> Outcome[TrimmedVocabulary]:
        """Tokenizes in this process, and writes what is left.

        Raises:
            ConfigError: the file of further text cannot be read.
            DataError: there is no text.
            ModelError: the tokenizer or the model cannot be trimmed, or would lose a special token.
        """
        from adapt.vocabulary.model_changes import trim_model

        start, asked = self.start.made(done), self.config.vocabulary
        refuse_additions(start.model, "trimmed")  # one that the chain has made
        check_weights(start.model)
        texts = chain(_lines(asked.keep), *(whole_text(files, self.config) for files in self.texts.values()))
        return Outcome(TrimmedVocabulary(**trim_model(self.config, start, texts, list(self.texts), folder)))


def _lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary.keep: {file} cannot be read: {error}", "name a text file in UTF-8") from error
