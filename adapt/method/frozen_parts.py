"""Methods that train a part of the model and freeze the rest: `freeze` and `expand`.

`freeze` freezes the token embeddings, and optionally the lowest layers, while a domain is learnt. In small models, the
embeddings have most of the parameters and forget most. Frozen parameters cannot forget, and they need no gradient and
no optimizer state. The field `training.freeze` freezes parameters by their names, with any method.

`expand` is block expansion (LLaMA Pro, arXiv 2401.02415): new layers learn the domain, and all other layers are frozen.
After each group of `every` layers, a copy of the group's last layer is inserted, with its output projections set to 0.
In models with norms before attention and feed-forward (pre-LN), such a copy is the identity. BERT and RoBERTa normalize
the sum of a layer and its input, so the copy would not be the identity, and these models are not supported. Only the
copies train. The resulting model is larger, and its config.json has the larger number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from adapt.config import Config, NonNegativeInt, PositiveInt
from adapt.method.base import Added, AddedMemory, Method, Setting
from adapt.model.architecture import check_deeper, check_units, grow_layer_lists
from adapt.model.locate import CONFIG, read_json
from adapt.model.size import ModelSize, model_size
from adapt.support.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class FreezeOptions:
    """Options of freezing: which parts of the model are not trained. `training.freeze` freezes parameters by name."""

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

    def __init__(self, options: FreezeOptions) -> None:
        super().__init__(options)
        self.options: FreezeOptions = options
        self.trains_head = self.trains_layers = not options.all_but_module

    def settings(self) -> dict[str, Any]:
        """`all_but_module` was added later, and is only in the key if it is true, so that old keys stay valid."""
        if self.options.all_but_module:
            return {"all_but_module": True}
        return {"embeddings": self.options.embeddings, "layers": self.options.layers}

    def check(self, config: Config, model: Path) -> None:
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
        if self.options.all_but_module:  # an upper bound, because the module is at most as large as the original layers
            trained = size.embedding_parameters + size.layer_parameters / 2
            return AddedMemory(trained=min(1.0, trained / size.parameters))
        frozen = float(size.embedding_parameters * self.options.embeddings)
        frozen += size.layer_parameters * min(1.0, self.options.layers / size.layers)
        return AddedMemory(trained=1 - frozen / size.parameters)


PRE_NORM = ("gpt2", "llama", "mistral", "modernbert", "qwen2", "qwen3")
"""Model types whose layers are the identity if their output projections are 0."""


@dataclass(frozen=True)
class ExpandOptions:
    """Options of block expansion: added layers start as the identity, and only they train (arXiv 2401.02415)."""

    every: PositiveInt = 4
    """One new layer is inserted after each group of this many layers, and after a smaller group at the end."""


class Expand(Method):
    """Inserts copies of some layers and trains only the copies."""

    Options = ExpandOptions
    kind: ClassVar[str] = "expand"
    trains_head = trains_layers = False
    options: ExpandOptions

    def check(self, config: Config, model: Path) -> None:
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
        from adapt.model.layers import insert_copies, layers_of

        model.requires_grad_(False)
        layers = layers_of(model)
        self.resize(model.config)
        insert_copies(model, layers, self._sources(len(layers)))
        return model

    def resize(self, config: Any) -> None:
        sources = [source for source, _ in self._sources(config.num_hidden_layers)]
        grow_layer_lists(config, sources)
        config.num_hidden_layers = len(sources)  # transformers maps this name to the architecture's, such as n_layer

    def _sources(self, layers: int) -> list[tuple[int, bool]]:
        """Returns, for each layer of the larger model, its source layer, and whether it is an added copy."""
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
        """The share is exact if `every` divides the number of layers."""
        return Added(trained=1 / self.options.every)

    def added_memory(self, size: ModelSize, shared_by: int = 1) -> AddedMemory:
        new = self._new(size.layers) / size.layers * size.layer_parameters
        return AddedMemory(held=4 * new, trained=min(1.0, new / size.parameters))
