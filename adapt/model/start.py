"""The model that a stage begins with: as it lies on disk, or as a training of the same chain will leave it."""

from dataclasses import dataclass, replace
from typing import Any

from adapt.model.locate import Pretrained
from adapt.runner import Done, Stage
from adapt.runner.record import load_record

MODEL_FOLDER = "model"
"""What a training calls the Hugging Face folder that it leaves."""


@dataclass(frozen=True)
class Start:
    """The model that a stage begins with, and where it comes from."""

    pretrained: Pretrained
    """The model itself. If a training is still to make it, the model that this training begins with: it has the same
    shape and the same tokenizer."""
    digest: str | None
    """The digest of the model's files. It is None if a training makes the model: then that training's key identifies
    it."""
    training: Stage[Any] | None = None
    """The training that makes the model, or the merge; None if the model is there already."""
    vocabulary: Stage[Any] | None = None
    """The stage that makes the tokenizer, and leaves it with a model in its folder; None if `pretrained` has it. Then
    the model has other tokens than `pretrained`."""

    def after(self, training: Stage[Any], own_tokenizer: bool = False) -> "Start":
        """A start from the model that a stage leaves, which began with this one.

        Args:
            training: the stage.
            own_tokenizer: the stage makes a tokenizer too.
        """
        return Start(self.pretrained, None, training, training if own_tokenizer else self.vocabulary)

    def made(self, done: Done) -> Pretrained:
        """The model on disk, once its training has run.

        It uses the tokenizer of the model that the training began with, unless a stage of the chain has made another.
        """
        if self.training is None:
            return self.pretrained
        return replace(self.with_tokenizer(done), model=done[self.training].path / self.training.model_place)

    def with_tokenizer(self, done: Done) -> Pretrained:
        """The first model of the chain that has the tokens of this one."""
        if self.vocabulary is None:
            return self.pretrained
        folder = done[self.vocabulary].path
        return replace(self.pretrained, model=folder, tokenizer=folder)

    def knows(self, done: Done) -> bool:
        """Whether it has been trained on the text of dev and test, as far as records say."""
        record = done[self.training].record if self.training else load_record(self.pretrained.model)
        return bool(record and record.metrics.get("transductive"))
