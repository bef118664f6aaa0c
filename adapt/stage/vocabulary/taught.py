"""Stages `distill` and `warmup`: what the rows of new tokens learn before all else is trained."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from adapt.better import Less
from adapt.config import Config
from adapt.model.start import Start
from adapt.runner import Done, Outcome, Stage
from adapt.runner.files import link_or_copy
from adapt.runner.record import Record, load_record
from adapt.runner.result import read_result
from adapt.show.blocks import Block, TextBlock
from adapt.stage.text.listing import Files
from adapt.stage.vocabulary.extend import WORDS_FILE, ExtendVocabulary
from adapt.stage.vocabulary.screened import Screening
from adapt.train.capacity.needs import task_needs
from adapt.vocabulary.results import Extended

SETTINGS = ("snippets", "learning_rate", "max_megabytes", "warmup_steps")


@dataclass(frozen=True)
class Taught:
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
        """What the rows of new tokens learnt, and where the model is."""
        measure = "error of hidden states" if record.what["way"] == "distill" else "loss"
        extended = load_record(Path(record.inputs["extended"]["path"]))
        before = read_result(Extended, extended).blocks(extended)[:-1] if extended else []  # without its model
        learnt = (
            f"the rows of {self.tokens:,} new tokens were trained for {self.steps:,} steps: "
            f"{measure} {self.before:.4g} before, {self.after:.4g} after"
        )
        return [*before, TextBlock(learnt), TextBlock(f"model and tokenizer: {record.path}")]

    def models_made(self, record: Record) -> dict[str, Path]:
        """The folder of the model that was made, under an empty name."""
        return {"": record.path}


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
        from adapt.evaluate.ready import call_on_device
        from adapt.ray.runtime import connect

        connect(self.config.resources)
        found = call_on_device(_teach, self.config.resources, self, done, folder)
        words = done[self.extended].path / WORDS_FILE
        link_or_copy(words, folder / WORDS_FILE)
        return Outcome(found)


def _teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """In a Ray task."""
    from adapt.ray.runtime import hide_unreserved_gpus

    hide_unreserved_gpus()
    return teach(stage, done, folder)


def teach(stage: TeachRows, done: Done, folder: Path) -> Taught:
    """What the stage does, in this process."""
    from adapt.vocabulary.teach import distil_rows, warm_rows

    path = done[stage.beginning].path
    teacher = stage.start.made(done)
    extended = replace(teacher, model=path, tokenizer=path)
    megabytes = stage.config.vocabulary.max_megabytes / len(stage.domains)
    texts = chain.from_iterable(stage.screening.texts(stage.domains, megabytes, stage.config.seed, done).values())
    words = json.loads((done[stage.extended].path / WORDS_FILE).read_text(encoding="utf-8"))
    pieces = {int(word["id"]): word["ids"] for word in words}
    if stage.way == "distill":
        error = distil_rows(teacher, extended, pieces, texts, stage.config, folder)
        return Taught(len(pieces), error.steps, error.before, error.after)
    warmed = warm_rows(extended, list(pieces), texts, stage.config, folder)
    return Taught(len(pieces), warmed.steps, warmed.first, warmed.last)
