"""Block expansion (LLaMA Pro, arXiv 2401.02415): new layers learn the domain, and all other layers are frozen.

After each group of `every` layers, a copy of the group's last layer is inserted, with its output projections set to 0.
In models with norms before attention and feed-forward (pre-LN), such a copy is the identity. BERT and RoBERTa normalize
the sum of a layer and its input, so the copy would not be the identity, and these models are refused. Only the copies
train. The resulting model is larger, and its config.json has the larger number of layers.
"""

from __future__ import annotations

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
        from adapt.model.layers import insert_copies, layers_of

        model.requires_grad_(False)
        layers = layers_of(model)
        self.resize(model.config)
        insert_copies(model, layers, self._sources(len(layers)))
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
