"""Describes the model that a stage begins with: a model on disk, or one that an earlier stage of the chain writes."""

from dataclasses import dataclass, replace
from typing import Any

from adapt.model.locate import Pretrained
from adapt.runner import Done, Stage
from adapt.runner.record import load_record

MODEL_FOLDER = "model"
"""Name of the Hugging Face folder in the results of a training stage."""


@dataclass(frozen=True)
class Start:
    """The model that a stage begins with, and the stage that writes it, if any."""

    pretrained: Pretrained
    """The model on disk. If a training stage writes the model, this is the model that the training begins with, which
    has the same shape and tokenizer."""
    digest: str | None
    """Digest of the model's files; None if a training stage writes the model, which is then identified by the key of
    this stage."""
    training: Stage[Any] | None = None
    """The training or merge stage that writes the model; None if the model exists already."""
    vocabulary: Stage[Any] | None = None
    """The stage that writes the tokenizer, with a model in the same folder. None if the tokenizer of `pretrained` is
    used; otherwise the model has other tokens than `pretrained`."""
    head: Stage[Any] | None = None
    """The stage that gave `pretrained` a new language-model head (`model.head: new`). None if no stage did."""
    generator: str | None = None
    """Digest of the files of `pretrained.generator`; None if there is no such folder."""
    turned: Stage[Any] | None = None
    """The stage that turned `pretrained`, a decoder, into an encoder (`model.attention: bidirectional`), if any."""

    def after(self, training: Stage[Any], own_tokenizer: bool = False) -> "Start":
        """Returns the `Start` of the stages that follow a stage which trains this model and writes the new model.

        Args:
            training: the stage that writes the model.
            own_tokenizer: whether the stage also writes a tokenizer.
        """
        vocabulary = training if own_tokenizer else self.vocabulary
        return replace(self, digest=None, training=training, vocabulary=vocabulary)

    def made(self, done: Done) -> Pretrained:
        """Returns the paths of the model, after the stage that writes it has run.

        The tokenizer is that of the model with which the training began, unless a stage of the chain wrote a tokenizer.
        """
        if self.training is None:
            return self.pretrained
        return self.with_tokenizer(done).at(done[self.training].path / self.training.model_place)

    def with_tokenizer(self, done: Done) -> Pretrained:
        """Returns a finished model with a head and the same tokens, before any training of it in this chain."""
        if self.vocabulary is not None:
            folder = done[self.vocabulary].path
            return replace(self.pretrained, model=folder, tokenizer=folder)
        return replace(self.pretrained, model=done[self.head].path) if self.head else self.pretrained

    def with_new_head(self, stage: Stage[Any]) -> "Start":
        """Returns the `Start` of the stages that follow a stage which gives the model a new head."""
        return replace(self.after(stage), head=stage)

    def with_turned_decoder(self, stage: Stage[Any]) -> "Start":
        """Returns the `Start` of the stages that follow a stage which turns this decoder into an encoder."""
        return replace(self.after(stage, own_tokenizer=True), turned=stage)

    def knows(self, done: Done) -> bool:
        """Returns whether the model was trained on the text of dev and test sets, according to the chain's records."""
        record = done[self.training].record if self.training else load_record(self.pretrained.model)
        return bool(record and record.metrics.get("transductive"))
