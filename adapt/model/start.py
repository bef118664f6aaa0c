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
    """A model."""

    pretrained: Pretrained
    """Where `training` is None, the model; else what that training began with: of the same shape and tokenizer."""
    digest: str | None
    """Of the model's files; None where a training makes it, whose key says it all."""
    training: Stage[Any] | None = None
    """That makes it."""

    def after(self, training: Stage[Any]) -> "Start":
        """The model that a training leaves, which began with this one."""
        return Start(self.pretrained, None, training)

    def made(self, done: Done) -> Pretrained:
        """The model, which is there once its training has run. Its tokenizer is that of the model it began with."""
        if self.training is None:
            return self.pretrained
        return replace(self.pretrained, model=done[self.training].path / MODEL_FOLDER)

    def knows(self, done: Done) -> bool:
        """Whether it has been trained on the text of dev and test, as far as records say."""
        record = done[self.training].record if self.training else load_record(self.pretrained.model)
        return bool(record and record.metrics.get("transductive"))
