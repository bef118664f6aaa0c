"""Defines the stages that change a job's initial model before the training.

- `head` adds a new masked-language-model head (`model.head: new`).
- `top` draws new weights for the top layers (`model.reinitialize_top`).
- `turned` lets a decoder's tokens also attend to later tokens (`model.attention: bidirectional`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.architecture import HEADS
from adapt.model.locate import CONFIG, has_head, read_json
from adapt.model.size import tensor_shapes
from adapt.model.start import Start
from adapt.model.trainable import top_names
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, TextBlock, summary
from adapt.stage.preflight import check_weights, head_missing
from adapt.support.errors import ConfigError


@dataclass(frozen=True)
class Headed(OneModel):
    """Result of adding a head to a model. The stage's folder contains the model with its new head."""

    new_parameters: int
    """Number of parameters of the new head, not counting the token embeddings that its last layer shares."""

    def blocks(self, record: Record) -> list[Block]:
        said = f"Gave the model a new head for masked tokens, with {self.new_parameters:,} random parameters."
        return [*summary(said), TextBlock(f"Model: {record.path}")]


@dataclass(frozen=True, eq=False)
class AddHead(Stage[Headed]):
    """Adds a new language-model head to an encoder that has none."""

    kind = "head"
    takes = ONE_CPU

    name: str
    causal: bool
    """Whether the job's objective predicts next tokens. If so, the stage refuses to run."""
    start: Start
    """The model without a head."""

    @classmethod
    def of(cls, config: Config, start: Start) -> "AddHead":
        """Returns the stage for the initial model of a job."""
        return cls(start.pretrained.model.name, config.objective.kind == "causal", start)

    def what(self) -> Mapping[str, Any]:
        return {"model": self.start.digest}

    def refuse_early(self) -> None:
        """Checks that the model is an encoder without a head.

        Raises:
            ConfigError: the objective predicts next tokens.
            ModelError: the model is a decoder, or has a head.
        """
        if self.causal:
            raise ConfigError(
                "model.head new makes a head for masked tokens, but objective.kind is causal",
                "leave model.head out, or choose an objective for masked tokens",
            )
        folder, trust_remote_code = self.start.pretrained.model, self.start.pretrained.trust_remote_code
        check_weights(folder)
        if str(read_json(folder / CONFIG).get("model_type")) not in HEADS:
            from adapt.model import load, tokenizer  # imported here, because they load torch

            load.check_direction(tokenizer.load_config(folder, trust_remote_code), False, folder)
        if not head_missing(folder, trust_remote_code):
            raise has_head(folder)

    def run(self, folder: Path, done: Done) -> Outcome[Headed]:
        from adapt.model.rebuilt_model import write_with_head

        return Outcome(Headed(write_with_head(self.start.made(done), folder)))


@dataclass(frozen=True)
class Redrawn(OneModel):
    """Result of drawing new random weights for the top layers. The stage's folder contains the model."""

    layers: int
    """Number of top layers with new weights."""
    new_parameters: int
    """Number of parameters with new values, including the parameters of a pooler."""
    transductive: bool = False
    """Whether the model had already been trained on the text of dev or test examples."""

    def blocks(self, record: Record) -> list[Block]:
        said = f"Drew new random weights for the top {self.layers} layers: {self.new_parameters:,} parameters."
        return [*summary(said), TextBlock(f"Model: {record.path}")]


@dataclass(frozen=True)
class Turned(OneModel):
    """Result of converting a decoder to an encoder. The stage's folder contains the model and its tokenizer."""

    mask_token: str
    is_added: bool
    """Whether the mask token was added to the tokenizer."""

    def blocks(self, record: Record) -> list[Block]:
        origin = "was added, with the mean of all embeddings" if self.is_added else "was already in the tokenizer"
        said = f"Made the decoder's attention bidirectional. The mask token {self.mask_token} {origin}."
        return [*summary(said), TextBlock(f"Model: {record.path}")]


@dataclass(frozen=True, eq=False)
class RedrawTop(Stage[Redrawn]):
    """Draws new random weights for a model's top layers before the training (arXiv 2006.05987, section 5)."""

    kind = "top"
    takes = ONE_CPU

    name: str
    layers: int
    """Number of top layers that get new random weights."""
    seed: int
    start: Start

    @classmethod
    def of(cls, config: Config, start: Start) -> "RedrawTop":
        """Returns the stage for the initial model of a job."""
        return cls(config.name, config.model.reinitialize_top, config.seed, start)

    def what(self) -> Mapping[str, Any]:
        return {"model": self.start.digest, "layers": self.layers, "seed": self.seed}

    def refuse_early(self) -> None:
        """Checks that the model has at least `layers` layers, and that their weights can be found.

        Raises:
            ConfigError, ModelError: the model has fewer layers, or their weights cannot be found.
        """
        folder = self.start.pretrained.model
        check_weights(folder)
        top_names(tensor_shapes(folder), str(read_json(folder / CONFIG).get("model_type")), self.layers)

    def run(self, folder: Path, done: Done) -> Outcome[Redrawn]:
        from adapt.model.rebuilt_model import write_with_new_top

        number = write_with_new_top(self.start.made(done), self.layers, self.seed, folder)
        return Outcome(Redrawn(self.layers, number, self.start.knows(done)))


@dataclass(frozen=True, eq=False)
class TurnDecoder(Stage[Turned]):
    """Converts a decoder to an encoder by setting `is_causal: false` in config.json (LLM2Vec, arXiv 2404.05961)."""

    kind = "turned"
    takes = ONE_CPU

    name: str
    start: Start
    """The decoder to convert."""
    tokenizer: str | None = None
    """Digest of the tokenizer's files, if `model.tokenizer` names them. None if `start` identifies the tokenizer."""

    def what(self) -> Mapping[str, Any]:
        return {"model": self.start.digest, **({"tokenizer": self.tokenizer} if self.tokenizer else {})}

    def refuse_early(self) -> None:
        """Checks the weights. `adapt.model.architecture.check_architecture` checks that the model is a decoder."""
        check_weights(self.start.pretrained.model)

    def run(self, folder: Path, done: Done) -> Outcome[Turned]:
        from adapt.model.rebuilt_model import write_turned

        return Outcome(Turned(*write_turned(self.start.made(done), folder)))


def has_untrained_head(start: Start) -> bool:
    """Returns whether a model's head is new, and no training run followed the stage that added it (`model.head: new`).

    Stages that redraw the top layers or change the vocabulary do not train the head.
    """
    made: Any = start.training
    while made is not None and (isinstance(made, RedrawTop) or made == start.vocabulary):
        start = made.start
        made = start.training
    return start.head is not None and made == start.head
