"""Stage `trim` removes from a model and its tokenizer the tokens that a domain never uses."""

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
    """Result of `TrimVocabulary`. The stage's folder contains the model and the tokenizer."""

    before: int
    """Number of tokens before trimming."""
    vocabulary: int
    """Number of tokens after trimming."""
    used: int
    """Number of distinct tokens that occur in the text. Further tokens are kept for other reasons."""
    parameters_saved: More[int]
    """Number of parameters that were removed from the embeddings and the head."""
    compute_saved: More[float | None] = None
    """Share of a training's FLOPs that the smaller head saves on the same text. None if the model's dimensions are
    unknown."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what remains of the vocabulary, and the model's folder."""
        said = (
            f"Removed {self.before - self.vocabulary:,} of {self.before:,} tokens, which your text does not use:"
            f" the model has {self.parameters_saved:,} parameters fewer."
        )
        kept = f"{self.vocabulary:,} tokens remain. {self.used:,} of them occur in the text."
        lines = [kept, *compute_saved(self.compute_saved), f"Model and tokenizer: {record.path}"]
        return [*summary(said), *(TextBlock(line) for line in lines)]


@dataclass(frozen=True, eq=False)
class TrimVocabulary(Stage[TrimmedVocabulary]):
    """Removes from a model and its tokenizer the tokens that some texts do not use."""

    kind = "trim"
    version = 2  # since version 2, byte tokens of BPE tokenizers with byte_fallback remain
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model to trim."""
    tokens: Tokens
    texts: Mapping[str, Files]
    """Text whose tokens are kept. It includes held-out text and evaluation texts, which would otherwise consist largely
    of unknown tokens. The text is not used to choose words or to train rows."""
    kept: str | None
    """Digest of a file of further text whose tokens are kept; None without a file."""

    def what(self) -> Mapping[str, Any]:
        """Returns the model, and the text that is read."""
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "texts": {name: files.what() for name, files in self.texts.items()},
            "max_megabytes": self.config.vocabulary.max_megabytes,
            "keep": self.kept,
            "seed": self.config.seed,
        }

    def run(self, folder: Path, done: Done) -> Outcome[TrimmedVocabulary]:
        """Tokenizes the text in this process, and writes the trimmed model and tokenizer.

        Raises:
            ConfigError: the file of further text cannot be read.
            DataError: there is no text.
            ModelError: the tokenizer or the model cannot be trimmed, or would lose a special token.
        """
        from adapt.vocabulary.model_changes import trim_model

        start, settings = self.start.made(done), self.config.vocabulary
        refuse_additions(start.model, "trimmed")  # repeats the check for a model that the chain has made since
        check_weights(start.model)
        texts = chain(_lines(settings.keep), *(whole_text(files, self.config) for files in self.texts.values()))
        return Outcome(TrimmedVocabulary(**trim_model(self.config, start, texts, list(self.texts), folder)))


def _lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary.keep: {file} cannot be read: {error}", "name a text file in UTF-8") from error
