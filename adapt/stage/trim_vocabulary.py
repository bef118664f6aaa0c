"""Stage `trim`: a model and a tokenizer without the tokens that a domain never uses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from adapt.config import Config
from adapt.model.additions.table import refuse_additions
from adapt.model.start import Start
from adapt.model.tokenize.ragged import IDS
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, TextBlock
from adapt.stage.context import Tokens
from adapt.stage.preflight import check_weights
from adapt.stage.text_sources import Files
from adapt.stage.vocabulary_analysis import empty_corpus
from adapt.support.better import More
from adapt.support.errors import ConfigError
from adapt.vocabulary.vocabulary_results import compute_saved

TOGETHER = 256
"""Documents that are tokenized together."""


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
        """What remains of the vocabulary, and where the model is."""
        kept = (
            f"{self.vocabulary:,} of {self.before:,} tokens remain ({self.used:,} of them occur in the text); "
            f"{self.parameters_saved:,} parameters fewer"
        )
        lines = [kept, *compute_saved(self.compute_saved), f"model and tokenizer: {record.path}"]
        return [TextBlock(line) for line in lines]


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
        from adapt.model.load import load_model
        from adapt.model.tokenizer import load_tokenizer
        from adapt.vocabulary.analysis import parameters_and_compute
        from adapt.vocabulary.extension import write_trimmed
        from adapt.vocabulary.trimming import trim_tokenizer

        start = self.start.made(done)
        refuse_additions(start.model, "trimmed")  # one that the chain has made
        check_weights(start.model)
        used = self._used(start)
        if not used:
            raise empty_corpus(", ".join(self.texts))
        tokenizer = load_tokenizer(start.model, start.tokenizer, start.trust_remote_code)
        size = len(tokenizer)
        trimmed = trim_tokenizer(tokenizer.backend_tokenizer, used, tokenizer.all_special_ids)
        causal = self.config.objective.kind == "causal"
        write_trimmed(start, trimmed, causal, folder)
        parameters = [
            load_model(place, causal, start.trust_remote_code).num_parameters() for place in (start.model, folder)
        ]
        _, compute = parameters_and_compute(start.model, folder, self.config, 0.0)
        saved = parameters[0] - parameters[1]
        return Outcome(TrimmedVocabulary(size, len(trimmed.kept), len(used), saved, compute))

    def _used(self, start: Any) -> set[int]:
        """The ids that the texts have."""
        from adapt.model.tokenize.text_tokenizer import QuickTokenizer
        from adapt.model.tokenizer import load_text_tokenizer

        quick = QuickTokenizer(load_text_tokenizer(start).backend_tokenizer)
        found: set[int] = set()
        for some in self._batches():
            found.update(np.unique(np.concatenate(quick(some).lists(IDS))).tolist())
        return found

    def _batches(self) -> Iterator[list[str]]:
        from adapt.vocabulary.corpus_texts import corpus_texts

        asked = self.config.vocabulary
        each = (
            corpus_texts(files.manifest, files.corpus, asked.max_megabytes, self.config.seed)
            for files in self.texts.values()
        )
        texts = chain(_lines(asked.keep), *each)
        while some := list(islice(texts, TOGETHER)):
            yield some


def _lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary.keep: {file} cannot be read: {error}", "name a text file in UTF-8") from error
