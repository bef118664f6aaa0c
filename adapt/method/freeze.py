"""Freezing: the embeddings of tokens, and the lowest layers if wanted, stay as they are while a domain is learnt.

Embeddings are where small models forget most, and most of their parameters; what does not move cannot forget. Frozen
parameters have no gradient and no optimizer state.
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
    """Parts of the model that are not trained."""

    embeddings: bool = True
    """Whether the embeddings of tokens are frozen; with them goes an LM head that has the same matrix."""
    layers: NonNegativeInt = 0
    """How many of the lowest layers are frozen."""
    all_but_module: bool = False
    """Whether all is frozen but what exBERT's module added (vocabulary.module): its smaller layers, its gates, and the
    rows of the tokens that came with it. freeze.embeddings and freeze.layers do not matter then."""


class Freeze(Method):
    """Trains a part of the model."""

    Options = FreezeOptions
    kind: ClassVar[str] = "freeze"
    options: FreezeOptions

    def settings(self) -> dict[str, Any]:
        """The parts that are frozen; what older keys do not know is in keys where it is used."""
        if self.options.all_but_module:
            return {"all_but_module": True}
        return {"embeddings": self.options.embeddings, "layers": self.options.layers}

    def check(self, config: Config, model: Path) -> None:
        """Refuses to freeze more layers than there are.

        Raises:
            ConfigError: there are not so many.
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
        """Freezes.

        Raises:
            ModelError: the module is to train, and the model has none.
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
        """Gradients and optimizer state are of the trained part alone."""
        if self.options.all_but_module:  # of the layers the module is half at most: it is no larger than they are
            trained = size.embedding_parameters + size.layer_parameters / 2
            return AddedMemory(trained=min(1.0, trained / size.parameters))
        frozen = float(size.embedding_parameters * self.options.embeddings)
        frozen += size.layer_parameters * min(1.0, self.options.layers / size.layers)
        return AddedMemory(trained=1 - frozen / size.parameters)
