"""Stage `head`: a model with a new masked-language-model head (`model.head: new`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.architecture import HEADS
from adapt.model.locate import CONFIG, read_json
from adapt.model.start import Start
from adapt.runner import ONE_CPU, Done, Outcome, Stage
from adapt.runner.record import OneModel, Record
from adapt.show.blocks import Block, TextBlock, summary
from adapt.stage.preflight import check_weights, weight_names
from adapt.support.errors import ConfigError


@dataclass(frozen=True)
class Headed(OneModel):
    """The model with its new head, in the stage's folder."""

    new_parameters: int
    """Parameters of the new head. Its last layer shares the table of token embeddings and is not among them."""

    def blocks(self, record: Record) -> list[Block]:
        """Says what is new, and where the model is."""
        said = f"Gave the model a new head for masked tokens, with {self.new_parameters:,} random parameters."
        return [*summary(said), TextBlock(f"Model: {record.path}")]


@dataclass(frozen=True, eq=False)
class AddHead(Stage[Headed]):
    """An encoder without a language-model head, with a new one."""

    kind = "head"
    takes = ONE_CPU

    name: str
    causal: bool
    """Whether the job's objective predicts next tokens, which is refused."""
    start: Start
    """The model without a head."""

    @classmethod
    def of(cls, config: Config, start: Start) -> "AddHead":
        """Returns the stage for a configuration and the model that it names."""
        return cls(start.pretrained.model.name, config.objective.kind == "causal", start)

    def what(self) -> Mapping[str, Any]:
        """The key depends on the model alone."""
        return {"model": self.start.digest}

    def refuse_early(self) -> None:
        """Refuses decoders, and models that have a head.

        Raises:
            ConfigError: the objective predicts next tokens.
            ModelError: the model is a decoder, or has a head.
        """
        if self.causal:
            raise ConfigError(
                "model.head new makes a head for masked tokens, but objective.kind is causal",
                "leave model.head out, or choose an objective for masked tokens",
            )
        folder = self.start.pretrained.model
        check_weights(folder)
        kind = str(read_json(folder / CONFIG).get("model_type"))
        if kind not in HEADS:
            from adapt.model.load import check_direction
            from adapt.model.tokenizer import load_config

            check_direction(load_config(folder, self.start.pretrained.trust_remote_code), False, folder)
        elif any(name.startswith(HEADS[kind]) for name in weight_names(folder)):
            from adapt.model.new_head import has_head

            raise has_head(folder)

    def run(self, folder: Path, done: Done) -> Outcome[Headed]:
        """Draws the head and writes the model, in this process."""
        from adapt.model.new_head import write_with_head

        return Outcome(Headed(write_with_head(self.start.made(done), folder)))
