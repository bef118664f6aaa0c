"""Freezes the token embeddings, and optionally the lowest layers, while a domain is learnt.

In small models, the embeddings have most of the parameters and forget most. Frozen parameters cannot forget, and they
need no gradient and no optimizer state. The field `training.freeze` freezes parameters by their names, with any method.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, NonNegativeInt
from adapt.method.base import AddedMemory, Method, Setting
from adapt.model.architecture import check_units
from adapt.model.size import ModelSize, model_size
from adapt.support.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class FreezeOptions:
    """Options of freezing: which parts of the model do not train. `training.freeze` also takes names of parameters."""

    embeddings: bool = True
    """Whether the token embeddings are frozen. An LM head that shares their matrix is then frozen too."""
    layers: NonNegativeInt = 0
    """Number of lowest layers that are frozen."""
    all_but_module: bool = False
    """Whether only exBERT's added module trains (vocabulary.module): its smaller layers, its gates, and the embeddings
    of the new tokens. freeze.embeddings and freeze.layers are ignored then."""


class Freeze(Method):
    """Trains only a part of the model."""

    Options = FreezeOptions
    kind: ClassVar[str] = "freeze"
    options: FreezeOptions

    def settings(self) -> dict[str, Any]:
        """Returns the options that enter the key.

        The newer option `all_but_module` enters the key only if it is true, so that old keys stay valid.
        """
        if self.options.all_but_module:
            return {"all_but_module": True}
        return {"embeddings": self.options.embeddings, "layers": self.options.layers}

    def check(self, config: Config, model: Path) -> None:
        """Refuses to freeze more layers than the model has.

        Raises:
            ConfigError: the model has fewer layers than `freeze.layers`.
            ModelError: the layers of the model are not known.
        """
        if not self.options.layers or self.options.all_but_module:
            return
        check_units(model)
        size = model_size(model)
        if size and self.options.layers > size.layers:
            raise ConfigError(
                f"freeze.layers is {self.options.layers}, but the model has {size.layers} layers",
                f"set freeze.layers to {size.layers} at most",
            )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Freezes the configured parts of the model.

        Raises:
            ModelError: `all_but_module` is true, but the model has no exBERT module.
        """
        from adapt.model.additions.exbert import train_exbert_alone
        from adapt.model.layers import layers_of

        if self.options.all_but_module:
            train_exbert_alone(model)
            return model
        if self.options.embeddings:
            model.get_input_embeddings().requires_grad_(False)
        for layer in layers_of(model)[: self.options.layers] if self.options.layers else ():
            layer.module.requires_grad_(False)
        return model

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the share of parameters that have gradients and optimizer state."""
        if self.options.all_but_module:  # the module is at most as large as the layers, so at most half of the model
            trained = size.embedding_parameters + size.layer_parameters / 2
            return AddedMemory(trained=min(1.0, trained / size.parameters))
        frozen = float(size.embedding_parameters * self.options.embeddings)
        frozen += size.layer_parameters * min(1.0, self.options.layers / size.layers)
        return AddedMemory(trained=1 - frozen / size.parameters)
