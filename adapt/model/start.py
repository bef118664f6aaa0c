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
    place: str = MODEL_FOLDER
    """Where in that stage's folder the model lies."""

    def after(self, training: Stage[Any], place: str = MODEL_FOLDER) -> "Start":
        """A start from the model that a training leaves; the training began with this one."""
        return Start(self.pretrained, None, training, place)

    def made(self, done: Done) -> Pretrained:
        """The model on disk, once its training has run.

        It uses the tokenizer of the model that the training began with.
        """
        if self.training is None:
            return self.pretrained
        return replace(self.pretrained, model=done[self.training].path / self.place)

    def knows(self, done: Done) -> bool:
        """Whether it has been trained on the text of dev and test, as far as records say."""
        record = done[self.training].record if self.training else load_record(self.pretrained.model)
        return bool(record and record.metrics.get("transductive"))
