"""Computes the importance I of units in [0, 1] from sizes of gradients, saves it, and uses it to mask updates.

With the mask, units that past domains need change less (DAS, arXiv 2302.03241, section 4.2). The paper scales the
*gradients* of a unit's parameters by 1 - I. Adam undoes most of this, because the size of its step does not depend on
the scale of gradients.

Target `update` scales the step itself. The optimizer trains V, starting from the weights W0, and the model computes
with W = W0 + (1 - I) (V - W0), while V gets the gradient of W unchanged. So W moves (1 - I) times as far as V in every
step of any optimizer, weight decay included. Gradient norm, clipping and the optimizer's state are the same as without
a mask. If I is 0, W equals V exactly; if I is 1, W equals W0.

Target `gradient` scales gradients like the paper's code, for comparison with it. Gradients are then clipped by the norm
of the scaled gradients.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from scipy.stats import rankdata
from torch import Tensor, nn

from adapt.method.base import Method, Setting
from adapt.model.layers import KINDS, Kind, Values, by_parameter, layers_of, ones, unit_counts
from adapt.model.masked_updates import Mask, Target, computed_with, mask_all
from adapt.runner.files import file_aside
from adapt.support.errors import ModelError, StageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


IMPORTANCE_FILE = "importance.safetensors"


@dataclass(frozen=True)
class Importance:
    """Importance of units (attention heads and neurons) and tokens in [0, 1], on the CPU."""

    units: dict[Kind, Tensor]
    """Importance of each unit, keyed by kind of unit, fp32 [layers, units]."""
    embedding: Tensor | None
    """Importance of each token's row of the embeddings, fp32 [vocabulary]; None if embeddings are not masked."""
    sample: Tensor
    """Numbers of the text rows on which importance was last measured, int64."""


def save_importance(importance: Importance, model: Any, folder: Path) -> None:
    """Writes importance to `importance.safetensors`, together with the type and sizes of the model.

    The file is written under a temporary name and then renamed.

    Raises:
        StorageError: the folder cannot be written or the disk is full.
    """
    tensors = {"sample": importance.sample, **{str(kind): layers for kind, layers in importance.units.items()}}
    if importance.embedding is not None:
        tensors["embedding"] = importance.embedding
    content = save(tensors, {"model_type": model.config.model_type, "sizes": json.dumps(_sizes(model))})
    with file_aside(folder / IMPORTANCE_FILE) as aside:
        aside.write_bytes(content)


def load_importance(folder: Path, model: Any) -> Importance:
    """Reads importance that `save_importance` wrote.

    Args:
        folder: folder of the stage that measured the importance.
        model: the model to mask, not wrapped.

    Raises:
        StageError: the file is missing or broken.
        ModelError: the importance was measured on a model of another architecture, depth, width or vocabulary.
    """
    path = folder / IMPORTANCE_FILE
    try:
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            theirs = {"model_type": about["model_type"], **json.loads(about["sizes"])}
            units: dict[Kind, Tensor] = {kind: tensors[kind] for kind in KINDS}
            importance = Importance(units, tensors.get("embedding"), tensors["sample"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StageError(f"{path} cannot be read: {error}", f"delete {folder} to measure importance again") from error
    ours = {"model_type": model.config.model_type, **_sizes(model)}
    if importance.embedding is None:
        theirs["vocabulary"] = ours["vocabulary"]  # the vocabulary may differ, because embeddings are not masked
    if theirs != ours:
        differences = ", ".join(
            f"{name} is {theirs.get(name)} there and {ours[name]} in this model"
            for name in ours
            if theirs.get(name) != ours[name]
        )
        raise ModelError(
            f"{path} has the importance of units of another model: {differences}",
            "use the same model for all domains of a sequence, or measure importance again on this model",
        )
    return importance


def joined_importance(previous: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Returns the larger of each token's two importances. If one argument is None, returns the other argument."""
    if previous is None or new is None:
        return previous if new is None else new
    return torch.maximum(previous, new)


def _sizes(model: Any) -> dict[str, int]:
    vocabulary = len(model.get_input_embeddings().weight)
    units = {str(kind): size for kind, size in unit_counts(model).items()}
    return {"layers": len(layers_of(model)), **units, "vocabulary": vocabulary}


How = Literal["paper", "positive", "rank"]
_EQUAL = 1e-6
"""Sizes in a layer count as equal if their standard deviation / mean is at most this, because fp32 rounds them."""


def normalize(sizes: Values, how: How) -> dict[Kind, Tensor]:
    """Computes the importance of every unit relative to the units of the same kind in its layer.

    Args:
        sizes: sizes of gradients, >= 0, [layers, units] for each kind of unit.
        how: formula of the importance. `paper` is |tanh(z)| (arXiv 2302.03241, section 4.1), where z is the distance
            from the layer's mean in (population) standard deviations, or 0 if all sizes are equal. `positive` is
            tanh(max(z, 0)), which is 0 for units below the mean. `rank` is the share of the layer's other units with a
            smaller size; a unit with an equal size counts half.

    Returns:
        fp32 [layers, units] in [0, 1].
    """
    return {kind: _normalized(sizes[kind].double(), how).float() for kind in KINDS}


def _normalized(sizes: Tensor, how: How) -> Tensor:
    if how == "rank":
        ranks = torch.from_numpy(rankdata(sizes.numpy(), axis=1))
        return (ranks - 1) / max(sizes.shape[1] - 1, 1)
    mean, deviation = sizes.mean(1, keepdim=True), sizes.std(1, correction=0, keepdim=True)
    scores = torch.where(deviation > _EQUAL * mean.abs(), (sizes - mean) / deviation, 0.0)
    return scores.tanh().abs() if how == "paper" else scores.clamp(min=0).tanh()


def normalize_tokens(sizes: Tensor) -> Tensor:
    """Computes the importance of every token: tanh(its size / mean size of the tokens that occur).

    Args:
        sizes: count of each token or size of its gradient, >= 0, [vocabulary]; 0 for tokens that do not occur.

    Returns:
        fp32 [vocabulary] in [0, 1].
    """
    sizes = sizes.double()
    came = (sizes > 0).sum().clamp(min=1)
    return (sizes / (sizes.sum() / came).clamp(min=torch.finfo(sizes.dtype).tiny)).tanh().float()


def random_sizes(model: Any, seed: int) -> dict[Kind, Tensor]:
    """Returns a random number per unit in place of its gradient's size, keyed by kind of unit, [layers, units].

    The numbers are absolute values of normally distributed numbers. `general_importance: random` uses them, as a
    control experiment for `kl`.
    """
    generator = torch.Generator().manual_seed(seed % 2**64)
    return {kind: torch.randn(gate.shape, generator=generator).abs() for kind, gate in ones(model).items()}


def accumulate(previous: Values, new: Values) -> dict[Kind, Tensor]:
    """Returns the larger of two importances of each unit, so that every domain is protected (2302.03241, sect. 4.2)."""
    return {kind: torch.maximum(previous[kind], new[kind]) for kind in KINDS}


def plasticity(importance: Values) -> dict[Kind, list[float]]:
    """Returns the mean of 1 - importance over the units of each layer, keyed by kind of unit.

    This mean is the average change of units, relative to training without a mask.
    """
    return {kind: (1 - importance[kind].double()).mean(1).tolist() for kind in KINDS}


def mean_plasticity(importance: Values) -> float:
    """Returns the mean of 1 - importance over all units."""
    return 1 - torch.cat([layers.flatten() for layers in importance.values()]).mean().item()


def with_floor(importance: Values, floor: float) -> dict[Kind, Tensor]:
    """Scales the importances of a layer down by a common factor if the mean of 1 - importance is below `floor`."""
    means = {kind: importance[kind].mean(1, keepdim=True) for kind in KINDS}
    return {kind: importance[kind] * ((1 - floor) / means[kind].clamp(min=1e-12)).clamp(max=1) for kind in KINDS}


class SoftMask(Method):
    """Trains with soft masks, which scale each parameter's update or gradient by 1 - I.

    Args:
        importance: importance I in [0, 1] of every unit. It masks the parameters that produce the unit's output.
        target: whether updates or gradients are scaled.
        embedding: importance I in [0, 1] of every token, fp32 [vocabulary]. It masks the token's row of the embeddings,
            which is also a row of the LM head if both share a matrix. None does not mask embeddings.
    """

    def __init__(self, importance: Values, target: Target = "update", embedding: Tensor | None = None) -> None:
        super().__init__()
        self._importance = importance
        self._target = target
        self._embedding = embedding
        self._masks: dict[str, Mask] = {}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Masks the model's parameters. Parameters whose importance is 0 everywhere get no mask.

        Raises:
            ModelError: the model's number of embeddings differs from the length of `embedding`.
        """
        importance = {**by_parameter(model, self._importance), **self._rows(model)}
        self._masks = mask_all(model, importance, self._target)
        return model

    def _rows(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns the importance of each row of the embeddings, [vocabulary, 1], keyed by the parameter's name."""
        if self._embedding is None:
            return {}
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        if len(table) != len(self._embedding):
            raise ModelError(
                f"importance was measured for {len(self._embedding):,} tokens, but the model has embeddings for "
                f"{len(table):,}",
                "measure importance again on this model, or set das.embeddings to free",
            )
        (name,) = (name for name, parameter in model.named_parameters() if parameter is table)
        return {name: self._embedding[:, None]}

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replaces the trained parameters V with the weights W, which the masked model uses in its computations."""
        return computed_with(state, self._masks)
