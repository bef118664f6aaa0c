"""Which tensors of two checkpoints are the same, where their names differ.

Checkpoints of one architecture may differ in what they call a tensor (`LayerNorm.gamma`, or `LayerNorm.weight`), in
whether names begin with that of the model (`bert.`), in which of several tied tensors they hold, and in parts that no
language model has (a pooler). transformers knows all that, so it is asked, but only where names differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from adapt.errors import ModelError

OLD = {"gamma": "weight", "beta": "bias"}
"""What the last part of a name was once called."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Names:
    """The names of an architecture's tensors.

    Args:
        folder: of a model.
        trust_remote_code: run code that comes with it.
    """

    folder: Path
    trust_remote_code: bool = False

    @cached_property
    def _model(self) -> Any:
        """Without numbers: only names and ties are wanted."""
        from adapt.model.load import model_class
        from adapt.model.quiet import quiet
        from adapt.model.tokenizer import load_config

        config = load_config(self.folder, self.trust_remote_code)
        with quiet(), torch.device("meta"):
            return model_class(config).from_config(config, trust_remote_code=self.trust_remote_code)

    @cached_property
    def of_language_model(self) -> set[str]:
        """The names that a language model has; of tied tensors the first."""
        return {self.first(name) for name in self._model.state_dict()}

    @cached_property
    def by_token(self) -> set[str]:
        """The tensors that have a row for each token: embeddings, head, and its biases; of tied ones the first."""
        layers = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        parts = {id(part) for layer in layers if layer is not None for part in layer.parameters()}
        named = self._model.named_parameters(remove_duplicate=False)
        return {self.first(name) for name, part in named if id(part) in parts}

    def first(self, name: str) -> str:
        """The name by which the architecture knows a tensor; of tied ones that of the first."""
        stem, dot, last = name.rpartition(".")
        name = f"{stem}{dot}{OLD.get(last, last) if 'norm' in stem.lower() else last}"
        known, prefix = self._known, f"{self._model.base_model_prefix}."
        if name not in known and prefix + name in known:
            name = prefix + name
        while name in self._model.all_tied_weights_keys:
            name = self._model.all_tied_weights_keys[name]
        return name

    @cached_property
    def _known(self) -> set[str]:
        return {*self._model.state_dict(), *self._model.all_tied_weights_keys}


def same_tensors(base: Shapes, model: Shapes, names: Names, folder: Path) -> dict[str, str]:
    """For each tensor of a base the name that a model has for it. Parts beside the language model may be missing.

    Args:
        base: the tensors of the base.
        model: those of the model.
        names: of the base's architecture.
        folder: of the model, for messages.

    Raises:
        ModelError: the model lacks one, has others, or has one of another shape; names them.
    """
    pairs = {name: name for name in base} if base.keys() == model.keys() else _matched(base, model, names, folder)
    wrong = sorted(name for name, other in pairs.items() if base[name] != model[other])
    if wrong:
        shapes = f"{wrong[0]} is {list(model[pairs[wrong[0]]])} there and {list(base[wrong[0]])} in the base"
        raise ModelError(
            f"{folder} is of another architecture than the base: {len(wrong)} tensors have another shape, such as"
            f" {shapes}",
            "merge models that were trained from one base",
        )
    return pairs


def _matched(base: Shapes, model: Shapes, names: Names, folder: Path) -> dict[str, str]:
    theirs = {names.first(name): name for name in model}
    pairs = {name: theirs[names.first(name)] for name in base if names.first(name) in theirs}
    missing = sorted(name for name in base if name not in pairs and names.first(name) in names.of_language_model)
    ours = {names.first(name) for name in base}
    unknown = sorted(other for name, other in theirs.items() if name not in ours and name in names.of_language_model)
    for what, found in (("lacks", missing), ("has besides", unknown)):
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise ModelError(
                f"{folder} is of another architecture than the base: it {what} {', '.join(found[:3])}{more}",
                "merge models that were trained from one base, saved with their language-model head",
            )
    return pairs
