"""Matches the tensors of checkpoints whose names or numbers of rows differ.

Checkpoints of one architecture may differ in the names of tensors (`LayerNorm.gamma` or `LayerNorm.weight`), in the
prefix of names (`bert.`), in which of several tied tensors they hold, and in parts that no language model has (a
pooler). transformers knows all that.

Models may have rows of tokens that the base does not have. A row that a model lacks is taken from the base. A row that
the base lacks is the mean of the models that have it. So every way of merging treats these rows like all others, and a
row that one model has, or that all models have in common, comes out unchanged whatever the share is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapt.merge.compatibility import NewTokens
from adapt.model.load import model_class
from adapt.model.safeguards import quiet
from adapt.model.tokenizer import load_config
from adapt.support.errors import ModelError

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


@dataclass(frozen=True)
class NewRows:
    """Gives a base, and models without them, the rows of new tokens."""

    tokens: NewTokens
    names: Names
    """Those that the base's architecture has."""

    def shapes(self, base: Shapes, models: Sequence[Shapes]) -> list[Shapes]:
        """The shapes of the tensors of the base and of each model, once all have the rows of new tokens."""
        wide = models[self.tokens.extended[0]]
        rows = {self.names.first(name): shape[0] for name, shape in wide.items() if self._has_rows(name)}
        return [
            _with_rows(own, {name: rows[first] for name in own if (first := self.names.first(name)) in rows})
            if place not in self.tokens.extended
            else own
            for place, own in enumerate([base, *models], -1)
        ]

    def widen(self, name: str, base: Tensor, models: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One tensor of all.

        Args:
            name: the tensor's.
            base: [V, ...] fp32.
            models: [V, ...] each, V that of the base or of the extended ones.

        Returns:
            The same with rows for all tokens; tensors that have no row for each token are returned as they are.
        """
        if not self._has_rows(name):
            return base, [*models]
        first, extended = self.tokens.first, self.tokens.extended
        new = torch.stack([models[place][first:] for place in extended]).mean(0)
        return torch.cat([base[:first], new]), [
            model if place in extended else torch.cat([model[:first], new]) for place, model in enumerate(models)
        ]

    def _has_rows(self, name: str) -> bool:
        return self.names.first(name) in self.names.by_token


def _with_rows(shapes: Shapes, rows: Mapping[str, int]) -> Shapes:
    return {name: (rows[name], *shape[1:]) if name in rows else shape for name, shape in shapes.items()}
