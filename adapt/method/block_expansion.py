"""Block expansion (LLaMA Pro, arXiv 2401.02415): new layers learn the domain, and all other layers are frozen.

After each group of `every` layers, a copy of the group's last layer is inserted, with its output projections set to 0.
In models with norms before attention and feed-forward (pre-LN), such a copy is the identity. BERT and RoBERTa normalize
the sum of a layer and its input, so the copy would not be the identity, and these models are refused. Only the copies
train. The resulting model is larger, and its config.json has the larger number of layers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.model.architecture import check_deeper, check_units, grow_layer_lists
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ALIASES, ModelSize
from adapt.support.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRE_NORM = ("gpt2", "llama", "mistral", "modernbert", "qwen2", "qwen3")
"""Model types whose layers are the identity if their output projections are 0."""


@dataclass(frozen=True)
class ExpandOptions:
    """Adds layers that start as the identity, and trains only these (arXiv 2401.02415)."""

    every: PositiveInt = 4
    """One new layer is inserted after each group of this many layers, and after a smaller group at the end."""


class Expand(Method):
    """Inserts copies of some layers and trains only the copies."""

    Options = ExpandOptions
    kind: ClassVar[str] = "expand"
    options: ExpandOptions

    def check(self, config: Config, model: Path) -> None:
        """Refuses models in which a layer with zero projections is not the identity.

        Raises:
            ModelError: the model's layers are not known, normalize the sum with their input, or depend on their depth.
        """
        check_units(model)
        check_deeper(model, "method.kind expand")
        kind = read_json(model / CONFIG).get("model_type")
        if kind not in PRE_NORM:
            raise ModelError(
                f"method.kind expand cannot add layers to {kind} models: they normalize the sum of a layer and its"
                " input, so every new layer would change the model's outputs",
                f"choose a model of another type ({', '.join(PRE_NORM)}), or another method",
            )

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Inserts the copies, and freezes everything else."""
        import torch

        from adapt.model.layers import layers_of

        model.requires_grad_(False)
        layers = layers_of(model)
        self.resize(model.config)
        expanded: list[Any] = []
        for source, is_new in self._sources(len(layers)):
            layer = layers[source]
            if not is_new:
                expanded.append(layer.module)
                continue
            new: Any = copy.deepcopy(layer.module, {id(model.config): model.config})
            _complete(new, model.config, len(expanded))
            for part in (layer.pattern.attention_out, layer.pattern.outer):
                projection = new.get_submodule(part)
                for parameter in projection.parameters(recurse=False):
                    torch.nn.init.zeros_(parameter)
            expanded.append(new.requires_grad_(True))
        for number, each in enumerate(expanded):
            for module in each.modules():
                if "layer_idx" in vars(module):  # renumbers the layers, because key-value caches use their numbers
                    vars(module)["layer_idx"] = number
        parent, _, name = layers[0].pattern.layers.rpartition(".")
        setattr(model.base_model.get_submodule(parent), name, torch.nn.ModuleList(expanded))
        return model

    def resize(self, config: Any) -> None:
        """Writes the number and the kinds of layers into the model's config."""
        sources = [source for source, _ in self._sources(config.num_hidden_layers)]
        grow_layer_lists(config, sources)
        (name,) = (name for name in ALIASES["layers"] if name in config.to_dict())
        setattr(config, name, len(sources))

    def _sources(self, layers: int) -> list[tuple[int, bool]]:
        """Returns, for each layer of the larger model, the layer that it comes from and whether it is an added copy."""
        sources = []
        for number in range(1, layers + 1):
            sources.append((number - 1, False))
            if not number % self.options.every or number == layers:
                sources.append((number - 1, True))
        return sources

    def _new(self, layers: int) -> int:
        """Returns the number of layers that are added to a model."""
        return -(-layers // self.options.every)

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """Returns the work of the new layers as a share of the old layers' work.

        The share is exact if `every` divides the number of layers.
        """
        return Added(trained=1 / self.options.every)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Returns the memory of the new layers' weights. Only these have gradients and optimizer state."""
        new = self._new(size.layers) / size.layers * size.layer_parameters
        return AddedMemory(held=4 * new, trained=min(1.0, new / size.parameters))


def _complete(layer: Any, config: Any, number: int) -> None:
    """Adds parts to a copied layer if the architecture has them at the copy's position but not at the original's.

    This concerns copies of ModernBERT's layer 0, which has no norm before attention, unlike all other layers. The first
    weights of the added norm do not matter, since the copy's output projections are 0.

    Args:
        layer: the copied layer.
        config: config of the larger model.
        number: index of the layer in the larger model, from 0.
    """
    import torch

    with torch.device("meta"):
        made = type(layer)(config, layer_idx=number)
    device, mode = next(layer.parameters()).device, layer.training
    for name, part in made.named_children():
        if {each for each, _ in part.named_parameters()} - {
            each for each, _ in layer.get_submodule(name).named_parameters()
        }:
            part.to_empty(device=device).reset_parameters()
            setattr(layer, name, part.train(mode))
