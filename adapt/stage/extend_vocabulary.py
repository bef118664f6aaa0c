"""Stages `extend` and `taught`: a model and a tokenizer with words of a domain as tokens.

`taught` trains the rows of the new tokens before all else is trained, by `distill` or `warmup`.
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
"""Values of `vocabulary.candidates` that are no file."""


@dataclass(frozen=True, eq=False)
class ExtendVocabulary(Stage[Extended]):
    """A model that has words of a corpus as tokens."""

    kind = "extend"
    takes = ONE_CPU

    name: str
    config: Config
    start: Start
    """The model."""
    tokens: Tokens
    domains: Mapping[str, Files]
    """The text whose words become tokens."""
    general: Files | None
    """General text, where `divergence` compares with it."""
    listed: str | None
    """The digest of a file of words; None where it is none."""
    screening: Screening
    """What the domains leave out; general text is read whole."""
    donor: Start | None = None
    """The model that knows the words, of `omp`."""

    def what(self) -> Mapping[str, Any]:
        """The model, what is read and how much, which words are chosen and how many, and what the model begins with."""
        asked, general = self.config.vocabulary, self.general
        return {
            "model": self.start.digest,
            **self.tokens.tokenizer,
            "domains": {name: files.what() for name, files in self.domains.items()},
            "general": general.reading if general else None,
            "candidates": self.listed or asked.candidates,
            "size": asked.size,
            "init": asked.init,
            **({"donor": self.donor.digest} if self.donor else {}),
            **({"module": asked.module, "module_share": asked.module_share} if asked.module else {}),
            "min_count": asked.min_count,
            "max_megabytes": asked.max_megabytes,
            "seed": self.config.seed,
            **self.screening.what(self.domains),
        }

    def size_ahead(self, size: ModelSize) -> ModelSize:
        """The dimensions of the model with its new tokens, and its module. Of an elbow nobody knows how many there are.

        Args:
            size: of the model before.
        """
        asked = self.config.vocabulary
        tokens = 0 if asked.size == "elbow" or self.listed else tokens_wanted(asked.size, size.vocabulary)
        larger = size.with_tokens(tokens)
        return larger.with_layers_beside(asked.module_share) if asked.module else larger

    def run(self, folder: Path, done: Done) -> Outcome[Extended]:
        """Chooses words, builds the tokenizer anew, and gives the model rows.

        Raises:
            DataError: the corpus has no words, or none that could become tokens; or the file of words cannot be used.
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
    """What new rows learnt. Model and tokenizer are in the stage's folder."""

    tokens: int
    """New tokens."""
    steps: int
    before: float
    """`distill`: mean squared difference of hidden states, on snippets that were not learnt from. `warmup`: mean loss
    of the first tenth of the steps [nats a predicted token]."""
    after: Less[float]
    """The same afterwards; of a warm-up, of the last tenth."""

    def blocks(self, record: Record) -> list[Block]:
        """Shows what the embeddings of new tokens learnt, and where the model is."""
        is_distilled = record.what["way"] == "distill"
        measure = "mean squared error of hidden states" if is_distilled else "mean training loss [nats per token]"
        extended = load_record(Path(record.inputs["extended"]["path"]))
        before = read_result(Extended, extended).blocks(extended)[:-1] if extended else []  # without its model
        learnt = (
            f"Embeddings of {self.tokens:,} new tokens were trained for {self.steps:,} steps: "
            f"{measure} {self.before:.4g} before and {self.after:.4g} after."
        )
        return [*before, TextBlock(learnt), TextBlock(f"Model and tokenizer: {record.path}")]


@dataclass(frozen=True, eq=False)
class TeachRows(Stage[Taught]):
    """The rows of new tokens, taught by the model before them, or by the objective."""

    kind = "taught"

    name: str
    config: Config
    way: str
    """`distill` or `warmup`."""
    start: Start
    """The model before its vocabulary was extended."""
    extended: ExtendVocabulary
    beginning: Stage[Any]
    """The stage whose model is taught: `extended`, or what taught it before."""
    domains: Mapping[str, Files]
    screening: Screening
    """What the domains leave out; the key of `extended` holds it."""

    def what(self) -> Mapping[str, Any]:
        """The way, its settings, objective and seed."""
        asked, config = self.config.vocabulary, self.config
        return {
            "way": self.way,
            **{name: getattr(asked, name) for name in SETTINGS},
            "objective": [config.objective.kind, config.objective.mask_fraction],
            "sequence_length": config.training.sequence_length,
            "seed": config.seed,
        }

    def needs(self) -> Mapping[str, float]:
        """It computes on one device."""
        return task_needs(self.config.resources)

    def run(self, folder: Path, done: Done) -> Outcome[Taught]:
        """Learns on a device of the cluster.

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
    """In a Ray task."""
    hide_unreserved_gpus()
    return teach(stage, done, folder)


def teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """What the stage does, in this process."""
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
