"""Stages `extend` and `taught` add words of a domain as tokens to a model and its tokenizer.

`taught` trains the rows of the new tokens before the whole model is trained, by `distill` or `warmup`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.config.job_sections import tokens_wanted
from adapt.model.size import ModelSize
from adapt.model.start import Start
from adapt.ray.runtime import connect, hide_unreserved_gpus
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.files import link_or_copy, write_atomically
from adapt.runner.record import OneModel, Record, load_record, read_result
from adapt.show.blocks import Block, TextBlock
from adapt.stage.context import Tokens
from adapt.stage.preflight import check_weights
from adapt.stage.text_sources import Files
from adapt.stage.vocabulary_analysis import Screening, whole_text
from adapt.support.better import Less
from adapt.support.redact import redact
from adapt.train.capacity.device import task_needs
from adapt.vocabulary.vocabulary_results import Extended

WORDS_FILE = "words.json"
WAYS = ("saved", "divergence", "trained")
"""Values of `vocabulary.candidates` that are not the path of a file."""


@dataclass(frozen=True, eq=False)
class ExtendVocabulary(Stage[Extended]):
    """Adds words of a corpus as tokens to a model and its tokenizer."""

    kind = "extend"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """Model to extend."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """Text whose words become tokens, keyed by domain."""
    general: Files | None
    """General text that `candidates: divergence` compares with the domains. None for other candidates."""
    listed: str | None
    """Digest of the file that lists the words. None if the words do not come from a file."""
    screening: Screening
    """Rules for excluding documents of the domains. General text is read completely."""
    donor: Start | None = None
    """Model whose vocabulary contains the words, for `init: omp`. None for other values of `init`."""

    def what(self) -> Mapping[str, Any]:
        """Returns the model, the text that is read, how words are chosen, and how new rows are initialized."""
        settings, general = self.config.vocabulary, self.general
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "general": general.reading if general else None,
            "candidates": self.listed or settings.candidates,
            "size": settings.size,
            "init": settings.init,
            **({"donor": self.donor.digest} if self.donor else {}),
            **({"module": settings.module, "module_share": settings.module_share} if settings.module else {}),
            "min_count": settings.min_count,
            "max_megabytes": settings.max_megabytes,
            "seed": self.config.seed,
            **self.screening.what(self.domains),
        }

    def size_ahead(self, size: ModelSize) -> ModelSize:
        """Returns the dimensions of the model with its new tokens and its exBERT module, if any.

        The number of new tokens is not known in advance for `elbow` and for a file of words. It then counts as 0.

        Args:
          size: dimensions of the model before the extension.
        """
        settings = self.config.vocabulary
        tokens = 0 if settings.size == "elbow" or self.listed else tokens_wanted(settings.size, size.vocabulary)
        larger = size.with_tokens(tokens)
        return larger.with_layers_beside(settings.module_share) if settings.module else larger

    def run(self, folder: Path, done: Done) -> Outcome[Extended]:
        """Chooses words, rebuilds the tokenizer, and adds rows to the model.

        Raises:
            DataError: the corpus has no words that could become tokens, or the file of words cannot be used.
            ModelError: the tokenizer or the model cannot be extended.
        """
        from adapt.vocabulary.model_changes import ExtensionTask, extend_model

        config, start = self.config, self.start.made(done)
        check_weights(start.model)
        task = ExtensionTask(
            name=self.name,
            config=config,
            start=start,
            base=redact(config.model.path if self.start.training is None else str(start.model)),
            donor=self.donor.made(done) if self.donor else None,
            domains=list(self.domains),
            is_listed=self.listed is not None,
        )
        general = whole_text(self.general, config) if self.general else None
        extended, words = extend_model(task, lambda: self.screening.joined(self.domains, config, done), general, folder)
        write_atomically(folder / WORDS_FILE, json.dumps(words, ensure_ascii=False))
        return Outcome(extended)


SETTINGS = ("snippets", "learning_rate", "max_megabytes", "warmup_steps")


@dataclass(frozen=True)
class Taught(OneModel):
    """Result of training the new rows. Model and tokenizer are in the stage's folder."""

    tokens: int
    """Number of new tokens."""
    steps: int
    before: float
    """Measure before training. For `distill`, the mean squared difference of hidden states, on snippets that were not
    trained on. For `warmup`, the mean loss of the first tenth of the steps [nats per predicted token]."""
    after: Less[float]
    """Measure after training. For `distill`, the mean squared difference of hidden states. For `warmup`, the mean loss
    of the last tenth of the steps [nats per predicted token]."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows the training of the new tokens' embeddings, and the model's folder."""
        is_distilled = record.what["way"] == "distill"
        measure = "mean squared error of hidden states" if is_distilled else "mean training loss [nats per token]"
        extended = load_record(Path(record.inputs["extended"]["path"]))
        # leaves out the last block, which names the folder of the model before training
        before = read_result(Extended, extended).blocks(extended)[:-1] if extended else []
        learnt = (
            f"Embeddings of {self.tokens:,} new tokens were trained for {self.steps:,} steps: "
            f"{measure} {self.before:.4g} before and {self.after:.4g} after."
        )
        return [*before, TextBlock(learnt), TextBlock(f"Model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class TeachRows(Stage[Taught]):
    """Trains the embedding rows of new tokens.

    `distill` uses the model before the extension as teacher, and `warmup` trains by the job's objective.
    """

    kind = "taught"

    name: str
    config: Config
    way: str
    """Kind of training: `distill` or `warmup`."""
    start: Start
    """Model before its vocabulary was extended."""
    extended: ExtendVocabulary
    beginning: Stage[Any]
    """Stage whose model is trained: `extended`, or an earlier stage that trained the new rows."""
    domains: Mapping[str, Files]
    screening: Screening
    """Rules for excluding documents of the domains. The key of `extended` contains them."""

    def what(self) -> Mapping[str, Any]:
        """Returns the kind of training, its settings, the objective and the seed."""
        settings, config = self.config.vocabulary, self.config
        return {
            "way": self.way,
            **{name: getattr(settings, name) for name in SETTINGS},
            "objective": [config.objective.kind, config.objective.mask_fraction],
            "sequence_length": config.training.sequence_length,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        """Requires one device."""
        return task_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Taught]:
        """Trains the rows on a device of the cluster.

        Raises:
            ModelError: the model cannot be loaded.
        """
        from adapt.evaluate.measure_model import call_on_device

        connect(self.config.resources)
        found = call_on_device(_teach, self.config.resources, self, done, folder)
        words = done[self.extended].path / WORDS_FILE
        link_or_copy(words, folder / WORDS_FILE)
        return Outcome(found)


def _teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """Trains the rows of new tokens inside a Ray task."""
    hide_unreserved_gpus()
    return teach(stage, done, folder)


def teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """Trains the rows of new tokens in this process, and returns the stage's result."""
    from adapt.vocabulary.teaching import distil_rows, warm_rows

    path = done[stage.beginning].path
    teacher = stage.start.made(done)
    extended = replace(teacher, model=path, tokenizer=path)
    texts = stage.screening.joined(stage.domains, stage.config, done)
    words = json.loads((done[stage.extended].path / WORDS_FILE).read_text(encoding="utf-8"))
    pieces = {int(word["id"]): word["ids"] for word in words}
    if stage.way == "distill":
        error = distil_rows(teacher, extended, pieces, texts, stage.config, folder)
        return Taught(len(pieces), error.steps, error.before, error.after)
    warmed = warm_rows(extended, list(pieces), texts, stage.config, folder)
    return Taught(len(pieces), warmed.steps, warmed.first, warmed.last)
