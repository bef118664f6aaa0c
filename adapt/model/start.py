"""Describes the model with which a stage begins: a model on disk, or a model that an earlier stage writes."""

from dataclasses import dataclass, replace
from typing import Any

from adapt.model.locate import Pretrained
from adapt.runner import Done, Stage
from adapt.runner.record import load_record

MODEL_FOLDER = "model"
"""Name of the Hugging Face folder in the results of a training stage."""


@dataclass(frozen=True)
class Start:
    """The model with which a stage begins, and the stage that writes this model, if any."""

    pretrained: Pretrained
    """The model on disk. If a training stage writes the model, this is the model with which the training begins.
    Both models have the same shape and tokenizer."""
    digest: str | None
    """Digest of the model's files. None if a training stage writes the model. In this case, the key of that stage
    identifies the model."""
    training: Stage[Any] | None = None
    """The training or merge stage that writes the model. None if the model already exists."""
    vocabulary: Stage[Any] | None = None
    """The stage that writes a new tokenizer, and a model with the new tokens in the same folder. None if the model has
    the tokenizer of `pretrained`."""
    head: Stage[Any] | None = None
    """The stage that gave `pretrained` a new language-model head (`model.head: new`). None if no stage did."""
    generator: str | None = None
    """Digest of the files of `pretrained.generator`; None if there is no such folder."""
    turned: Stage[Any] | None = None
    """The stage that converted the decoder `pretrained` to bidirectional attention (`model.attention`), if any."""

    def after(self, training: Stage[Any], own_tokenizer: bool = False) -> "Start":
        """Returns the `Start` for later stages, which use a stage's model and, if `own_tokenizer`, its tokenizer."""
        vocabulary = training if own_tokenizer else self.vocabulary
        return replace(self, digest=None, training=training, vocabulary=vocabulary)

    def made(self, done: Done) -> Pretrained:
        """Returns the paths of the model. If a stage writes the model, this stage must have run.

        The tokenizer belongs to the model with which the training began, unless a stage of the chain wrote a tokenizer.
        """
        if self.training is None:
            return self.pretrained
        return self.with_tokenizer(done).at(done[self.training].path / self.training.model_place)

    def with_tokenizer(self, done: Done) -> Pretrained:
        """Returns the model before this chain's training runs. If a stage wrote a head or tokenizer, includes it."""
        if self.vocabulary is not None:
            folder = done[self.vocabulary].path
            return replace(self.pretrained, model=folder, tokenizer=folder)
        return replace(self.pretrained, model=done[self.head].path) if self.head else self.pretrained

    def with_new_head(self, stage: Stage[Any]) -> "Start":
        """Returns the `Start` for later stages, which use the model after `stage` has added a new head."""
        return replace(self.after(stage), head=stage)

    def with_turned_decoder(self, stage: Stage[Any]) -> "Start":
        """Returns the `Start` for later stages, which use this decoder after `stage` has made it bidirectional."""
        return replace(self.after(stage, own_tokenizer=True), turned=stage)

    def knows(self, done: Done) -> bool:
        """Returns whether the model was trained on text of dev and test sets, according to its training record."""
        record = done[self.training].record if self.training else load_record(self.pretrained.model)
        return bool(record and record.metrics.get("transductive"))
