"""Block expansion (LLaMA Pro, arXiv 2401.02415): new layers learn the domain, and the others stay as they are.

After every `every` layers a copy of the last of them is put in, the projections into the residual stream 0. A layer
that adds nothing is the identity where norms come before attention and feed-forward (pre-LN). In BERT and RoBERTa,
which norm the sum, it is not, so they are refused. Only the copies train. The model that is handed on is larger, and
its config.json says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from adapt.config import Config, PositiveInt
from adapt.errors import ModelError
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.model.layers.families import check_units
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ALIASES, ModelSize

PRE_NORM = ("gpt2", "llama", "mistral", "modernbert", "qwen2", "qwen3")
"""Model types whose layers are the identity when their projections are 0."""


@dataclass(frozen=True)
class ExpandOptions:
    """New layers that start as the identity, and train alone (arXiv 2401.02415)."""

    every: PositiveInt = 4
    """A new layer comes after so many layers; what is left over at the end counts as a group, too."""


class Expand(Method):
    """Trains copies of some layers."""

    Options = ExpandOptions
    kind: ClassVar[str] = "expand"

    def __init__(self, options: ExpandOptions) -> None:
        super().__init__(options)
        self.options: ExpandOptions = options

    def check(self, config: Config, model: Path) -> None:
        """Refuses models in which a layer that adds nothing is not the identity.

        Raises:
            ModelError: its layers are not known, or norm the sum.
        """
        check_units(model)
        kind = read_json(model / CONFIG).get("model_type")
        if kind not in PRE_NORM:
            raise ModelError(
                f"method.kind expand cannot add layers to {kind} models: they norm what a layer and its input sum to,"
                " so that no new layer leaves the model as it is",
                f"choose a model of another type ({', '.join(PRE_NORM)}), or another method",
            )

    def prepare_model(self, model: Any, setting: Setting) -> Any:
        """Puts the copies in, and freezes everything else."""
        import copy

        from torch import nn

        from adapt.model.layers.pattern import layers_of

        model.requires_grad_(False)
        expanded = []
        for number, layer in enumerate(layers := layers_of(model), start=1):
            expanded.append(layer.module)
            if number % self.options.every and number < len(layers):
                continue
            new: Any = copy.deepcopy(layer.module, {id(model.config): model.config}).requires_grad_(True)
            for part in (layer.pattern.attention_out, layer.pattern.outer):
                projection = new.get_submodule(part)
                for parameter in projection.parameters(recurse=False):
                    nn.init.zeros_(parameter)
            expanded.append(new)
        for number, each in enumerate(expanded):
            for module in each.modules():
                if "layer_idx" in vars(module):  # by which caches of keys and values tell layers apart
                    vars(module)["layer_idx"] = number
        parent, _, name = layers[0].pattern.layers.rpartition(".")
        setattr(model.base_model.get_submodule(parent), name, nn.ModuleList(expanded))
        self.resize(model.config)
        return model

    def resize(self, config: Any) -> None:
        """Says how many layers there are now."""
        before = config.num_hidden_layers
        copied = [number for number in range(1, before + 1) if not number % self.options.every or number == before]
        if types := getattr(config, "layer_types", None):
            config.layer_types = [
                kind for number, kind in enumerate(types, start=1) for kind in [kind] * (1 + (number in copied))
            ]
        (name,) = (name for name in ALIASES["layers"] if name in config.to_dict())
        setattr(config, name, before + len(copied))

    def _new(self, layers: int) -> int:
        """How many layers are added to so many."""
        return -(-layers // self.options.every)

    def added_passes(self, is_known: bool = True, passes: int = 1) -> Added:
        """The new layers, forward and backward, as a share of those that there are; where they divide evenly."""
        return Added(trained=1 / self.options.every)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """The new layers' weights; gradients and optimizer state are of these alone."""
        new = self._new(size.layers) / size.layers * size.layer_parameters
        return AddedMemory(held=4 * new, trained=min(1.0, new / size.parameters))
