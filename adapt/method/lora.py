"""LoRA (arXiv 2106.09685): every linear layer of the transformer gets a low-rank addition, and nothing else trains.

"Learns less and forgets less" than full training (arXiv 2405.09673, whose settings for continued pre-training are the
defaults). At the end of a domain the additions are merged into the weights, so an ordinary model is handed on, and the
next domain begins with additions of its own. The layers are those that hold a transformer's units: additions to
embeddings and LM head would be made and silently not trained by some libraries, so there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from adapt.config import Config, PositiveFloat, PositiveInt, ProperFraction
from adapt.method.base import AddedMemory, Method, Setting
from adapt.model.layers.families import check_units
from adapt.model.size import ModelSize
from adapt.runner.packages import deciding

BASE, DOWN, UP = ".base_layer.", ".lora_A.default.", ".lora_B.default."
"""What peft puts into the names of a layer's parameters."""


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank additions to the transformer's linear layers, merged after each domain (arXiv 2106.09685)."""

    rank: PositiveInt = 256
    """Rank of each addition: 256 for continued pre-training of large models (arXiv 2405.09673)."""
    scale: PositiveFloat = 2.0
    """What additions are multiplied by: alpha / rank of the paper."""
    dropout: ProperFraction = 0.0
    """Dropout of what enters an addition."""


class Lora(Method):
    """Trains additions B A to frozen weights W."""

    Options = LoraOptions
    kind: ClassVar[str] = "lora"

    def __init__(self, options: LoraOptions) -> None:
        super().__init__(options)
        self.options: LoraOptions = options
        self._transposed = False  # whether weights are [inputs, outputs], as GPT-2's are

    def settings(self) -> dict[str, Any]:
        """Where additions go and how they begin is peft's."""
        return {**super().settings(), **deciding("peft")}

    def check(self, config: Config, model: Path) -> None:
        """Refuses models whose layers are not known.

        Raises:
            ModelError: names those that are.
        """
        check_units(model)

    def prepare_model(self, model: Any, setting: Setting) -> Any:
        """Freezes the model and adds the matrices: A random, by the run's seed, and B 0, so nothing changes yet."""
        import torch
        from peft import LoraConfig, inject_adapter_in_model

        from adapt.model.layers.pattern import is_transposed, layers_of

        layers = layers_of(model)
        names = [f"{layer.name}.{part}" for layer in layers for part in parts_with_units(layer.pattern)]
        self._transposed = is_transposed(layers[0].part(layers[0].pattern.outer))
        wanted = LoraConfig(
            r=self.options.rank,
            lora_alpha=self.options.scale * self.options.rank,  # type: ignore[arg-type]  # need not be whole
            lora_dropout=self.options.dropout,
            target_modules=names,
            fan_in_fan_out=self._transposed,
        )
        model.requires_grad_(False)
        with torch.random.fork_rng([]):
            torch.manual_seed((setting.seed + (setting.number or 0)) % 2**63)
            inject_adapter_in_model(wanted, model)
        return model

    def merge(self, state: dict[str, Any]) -> dict[str, Any]:
        """W + scale B A in place of W."""
        merged = {}
        for name, weight in state.items():
            if DOWN in name or UP in name:
                continue
            down, up = name.replace(BASE, DOWN), name.replace(BASE, UP)
            if BASE in name and down in state:  # a weight, and not a bias
                added = self.options.scale * state[up] @ state[down]
                weight = weight + (added.T if self._transposed else added)
            merged[name.replace(BASE, ".")] = weight
        return merged

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        """Gradients and optimizer state are of the additions alone; the additions themselves are held beside."""
        width = 5 * size.hidden + 3 * size.attention + (2 + size.gated) * size.inner  # in and out of all parts, about
        added = float(self.options.rank * size.layers * width)
        return AddedMemory(held=4 * added, trained=min(1.0, added / size.parameters))


def parts_with_units(pattern: Any) -> list[str]:
    """The names of a layer's linear parts, each once."""
    parts = (pattern.query, pattern.key, pattern.value, pattern.attention_out, *pattern.inner, pattern.outer)
    return list(dict.fromkeys(parts))
