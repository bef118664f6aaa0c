"""Computes the importance I of units in [0, 1] from sizes of gradients, saves it, and uses it to mask updates.

With the mask, units that past domains need change less (DAS, arXiv 2302.03241, section 4.2; docs/science/equations.md,
section "DAS"). With target `update`, weights W move (1 - I) times as far as the trained parameters V in every step of
any optimizer, weight decay included. Gradient norm, clipping and the optimizer's state are the same as without a mask.
Target `gradient` scales gradients like the paper's code, and clips them by the norm of the scaled gradients.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from scipy.stats import rankdata
from torch import Tensor, nn

from adapt.model.layers import KINDS, Kind, Values, by_parameter, layers_of, ones, unit_counts
from adapt.model.masked_updates import Mask, Target, mask_all
from adapt.runner.files import file_aside
from adapt.support.errors import ModelError, StageError

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
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if different:
        each = (f"{name} is {theirs.get(name)} there and {ours[name]} in this model" for name in different)
        raise ModelError(
            f"{path} has the importance of units of another model: {', '.join(each)}",
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


def plasticity(importance: Values) -> dict[str, list[float]]:
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


def soft_mask(
    model: nn.Module, importance: Values, target: Target = "update", embedding: Tensor | None = None
) -> dict[str, Mask]:
    """Masks a model's parameters, so that each parameter's update or gradient is scaled by 1 - I.

    Parameters whose importance is 0 everywhere get no mask. `computed_with` returns the weights W that the masked model
    uses, from the trained parameters V and the masks.

    Args:
        model: the model, before it is compiled and wrapped.
        importance: importance I in [0, 1] of every unit. It masks the parameters that produce the unit's output.
        target: whether updates or gradients are scaled.
        embedding: importance I in [0, 1] of every token, fp32 [vocabulary]. It masks the token's row of the embeddings,
            which is also a row of the LM head if both share a matrix. None does not mask embeddings.

    Returns:
        The masks, keyed by parameter name.

    Raises:
        ModelError: the model's number of embeddings differs from the length of `embedding`.
    """
    by_name = by_parameter(model, importance)
    if embedding is not None:
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        if len(table) != len(embedding):
            raise ModelError(
                f"importance was measured for {len(embedding):,} tokens, but the model has embeddings for "
                f"{len(table):,}",
                "measure importance again on this model, or set das.embeddings to free",
            )
        (name,) = (name for name, parameter in model.named_parameters() if parameter is table)
        by_name[name] = embedding[:, None]
    return mask_all(model, by_name, target)
