"""Importance of units in [0, 1]: made from sizes of gradients, kept in a file between domains, and used as soft masks.

What past domains need moves less (DAS, arXiv 2302.03241, section 4.2). The paper scales the *gradients* of a unit's
parameters by 1 - I. Under Adam, whose step does not depend on the scale of gradients, that hardly does anything.
Target `update` scales the step itself. The optimizer trains V, from the weights W0 on, and the model computes with W
= W0 + (1 - I) (V - W0), while V gets the gradient of W unchanged. So whatever step an optimizer makes, weight decay
included, W makes 1 - I of it. Gradient norm, clipping and the optimizer's state are those of unmasked parameters.
Where I is 0, W is V, bit for bit, and where it is 1, W0.

Target `gradient` is what the paper's code does, for comparison. The norm that clips is then that of the scaled
gradients.
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
    """Importance in [0, 1], on the CPU."""

    units: dict[Kind, Tensor]
    """fp32 [layers, units] of each kind."""
    embedding: Tensor | None
    """fp32 [vocabulary], of the rows of the embeddings; None where they are free."""
    sample: Tensor
    """int64: the rows of the corpus on which it was measured last."""


def save_importance(importance: Importance, model: Any, folder: Path) -> None:
    """Writes it, with what model it is of, aside and renames it into place.

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
    """Reads what `save_importance` wrote.

    Args:
        folder: of the stage that measured it.
        model: for which it is to be used; not wrapped.

    Raises:
        StageError: the file is missing or broken.
        ModelError: it is of a model of another architecture, depth, width or vocabulary.
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
        theirs["vocabulary"] = ours["vocabulary"]  # no row of it is masked
    if theirs != ours:
        differences = ", ".join(
            f"{name} {theirs.get(name)} there and {ours[name]} here" for name in ours if theirs.get(name) != ours[name]
        )
        raise ModelError(
            f"{path} holds the importance of another model: {differences}",
            "keep to one model in a sequence of domains, or measure importance again on this one",
        )
    return importance


def joined_importance(previous: Tensor | None, new: Tensor | None) -> Tensor | None:
    """The larger importance of each token, where either is known."""
    if previous is None or new is None:
        return previous if new is None else new
    return torch.maximum(previous, new)


def _sizes(model: Any) -> dict[str, int]:
    vocabulary = len(model.get_input_embeddings().weight)
    units = {str(kind): size for kind, size in unit_counts(model).items()}
    return {"layers": len(layers_of(model)), **units, "vocabulary": vocabulary}


How = Literal["paper", "positive", "rank"]
_EQUAL = 1e-6
"""Deviation, as a share of the mean, up to which the sizes of a layer differ by the rounding of fp32 alone."""


def normalize(sizes: Values, how: How) -> dict[Kind, Tensor]:
    """Importance of every unit among those of its kind in its layer.

    Args:
        sizes: [layers, units] each, >= 0.
        how: `paper` |tanh(z)| (arXiv 2302.03241, section 4.1), z in (population) standard deviations from the mean,
            0 where all are equal; `positive` tanh(max(z, 0)), which leaves units below the mean free; `rank` the
            share of the others that are smaller, where equal ones share their ranks.

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
    """Importance of every token, tanh(size / mean size of those that came).

    Args:
        sizes: [vocabulary], >= 0: how often a token came, or the size of its gradient; 0 for those that never came.

    Returns:
        fp32 [vocabulary] in [0, 1].
    """
    sizes = sizes.double()
    came = (sizes > 0).sum().clamp(min=1)
    return (sizes / (sizes.sum() / came).clamp(min=torch.finfo(sizes.dtype).tiny)).tanh().float()


def random_sizes(model: Any, seed: int) -> dict[Kind, Tensor]:
    """Sizes that mean nothing, as of normally distributed gradients, [layers, units]: the control of `kl`."""
    generator = torch.Generator().manual_seed(seed % 2**64)
    return {kind: torch.randn(gate.shape, generator=generator).abs() for kind, gate in ones(model).items()}


def accumulate(previous: Values, new: Values) -> dict[Kind, Tensor]:
    """What is important to any of them: the larger importance of each unit (arXiv 2302.03241, section 4.2)."""
    return {kind: torch.maximum(previous[kind], new[kind]) for kind in KINDS}


def plasticity(importance: Values) -> dict[Kind, list[float]]:
    """For each kind and layer, the share of a step that its units make on average: the mean of 1 - importance."""
    return {kind: (1 - importance[kind].double()).mean(1).tolist() for kind in KINDS}


def mean_plasticity(importance: Values) -> float:
    """The mean of 1 - I over all units."""
    return 1 - torch.cat([layers.flatten() for layers in importance.values()]).mean().item()


def with_floor(importance: Values, floor: float) -> dict[Kind, Tensor]:
    """Importances of a layer, all made smaller by a factor where its plasticity would be less than `floor`."""
    means = {kind: importance[kind].mean(1, keepdim=True) for kind in KINDS}
    return {kind: importance[kind] * ((1 - floor) / means[kind].clamp(min=1e-12)).clamp(max=1) for kind in KINDS}


class SoftMask(Method):
    """Training that moves each parameter by 1 - I of its ordinary update.

    Args:
        importance: I in [0, 1] of every unit, for the parameters that make its output.
        target: what is scaled.
        embedding: I in [0, 1] of every token, fp32 [vocabulary], for its row of the embeddings; None leaves them free.
            Where the LM head has the same matrix, it is masked there, too.
    """

    def __init__(self, importance: Values, target: Target = "update", embedding: Tensor | None = None) -> None:
        super().__init__()
        self._importance = importance
        self._target = target
        self._embedding = embedding
        self._masks: dict[str, Mask] = {}

    def prepare_model(self, model: PreTrainedModel, setting: Setting) -> PreTrainedModel:
        """Masks the model's parameters. Parameters that are wholly free stay as they are.

        Raises:
            ModelError: the embeddings have another number of rows than there are importances.
        """
        importance = {**by_parameter(model, self._importance), **self._rows(model)}
        self._masks = mask_all(model, importance, self._target)
        return model

    def _rows(self, model: nn.Module) -> dict[str, Tensor]:
        """Importance of the embeddings' rows, [vocabulary, 1], by the parameter's name."""
        if self._embedding is None:
            return {}
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        if len(table) != len(self._embedding):
            raise ModelError(
                f"importance was measured for {len(self._embedding):,} tokens, and the model has embeddings for "
                f"{len(table):,}",
                "measure importance again on this model, or set das.embeddings to free",
            )
        (name,) = (name for name, parameter in model.named_parameters() if parameter is table)
        return {name: self._embedding[:, None]}

    def merge(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """W in place of V."""
        return computed_with(state, self._masks)
