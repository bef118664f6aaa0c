"""Measures second moments of linear layers' inputs, and computes which weight directions matter least for them (CorDA).

CorDA (Yang et al. 2024, arXiv 2406.05223, section 3) protects the knowledge that a model needs for a chosen text. C is
the mean of x x^T over the text's tokens, where x is the input of a layer with weight W. The singular value
decomposition of W C is U S V^T, so W = U S (V^T C^-1). The terms of this product with the smallest S matter least for
that text. They become the adapter B A and are trained. The rest of W is frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora.corda import CordaEigens
from safetensors import safe_open
from torch import Tensor, nn

from adapt.method.measurement import AddedUp
from adapt.method.row_sums import check_sums
from adapt.model.layers import Layer, inputs, layers_of
from adapt.objective.objective import Batch, Objective

DAMPING = 0.01
"""Factor of the mean of C's diagonal that is added to the diagonal to make C invertible, as in the authors' code."""


def shared_inputs(model: Any) -> dict[str, str]:
    """Maps each linear part of a layer to the first part with the same input. Key and value are mapped to query."""
    return {name: first for layer in layers_of(model) for first, names in _readers(layer) for name in names}


def _readers(layer: Layer) -> Iterable[tuple[str, list[str]]]:
    parts = layer.pattern
    for group in ((parts.query, parts.key, parts.value), (parts.attention_out,), parts.inner, (parts.outer,)):
        names = [f"{layer.name}.{part}" for part in dict.fromkeys(group)]
        yield names[0], names


def second_moments(
    model: Any, objective: Objective, batches: Iterable[tuple[int, Batch]], dtype: torch.dtype = torch.float32
) -> AddedUp:
    """Sums x x^T over all tokens for each input x, [inputs, inputs]. Parts with the same input share a sum.

    The sums are keyed by the names of the first parts from `shared_inputs`.

    Args:
        model: a model with its head, in evaluation mode, not wrapped.
        objective: masks the batches.
        batches: numbered batches of rows.
        dtype: precision of autocast.
    """
    device = next(iter(model.parameters())).device
    parts = {name: model.get_submodule(name) for name in dict.fromkeys(shared_inputs(model).values())}
    sums = {name: torch.zeros(inputs(part), inputs(part), device=device) for name, part in parts.items()}
    seen = dict.fromkeys(parts, 0)

    def adding_to(name: str) -> Any:
        def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            rows = given[0].detach().flatten(0, -2)
            with torch.autocast(device.type, enabled=False):
                sums[name].addmm_(rows.float().T, rows.float())
            seen[name] += len(rows)

        return add

    tokens, hooks = 0, [part.register_forward_pre_hook(adding_to(name)) for name, part in parts.items()]
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            for _, batch in batches:
                tokens += int(batch.lengths.sum())
                objective.loss(model, objective.corrupt(batch).bound_for(device))
    finally:
        for hook in hooks:
            hook.remove()
    return AddedUp(sums, max(seen.values()), tokens)


def least_directions(weight: Tensor, moment: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `rank` terms with the smallest S: U [outputs, rank], S [rank], and V^T C^-1 [rank, inputs].

    Args:
        weight: the weight W, [outputs, inputs].
        moment: the second moments C of the inputs, [inputs, inputs].
        rank: number of terms.
    """
    damped = moment.double()
    damped = damped + (DAMPING * damped.diagonal().mean() or 1.0) * torch.eye(
        len(damped), dtype=damped.dtype, device=damped.device
    )
    left, sizes, right = torch.linalg.svd(weight.double() @ damped, full_matrices=False)
    return left[:, -rank:], sizes[-rank:], torch.linalg.solve(damped, right[-rank:].T).T


def note_directions(model: Any, names: Sequence[str], file: Path, rank: int, transposed: bool) -> None:
    """Stores in each named linear layer the directions from which peft initializes its low-rank adapter (CorDA).

    These directions of the layer's weight matter least for the measured text.

    Args:
        model: a model without adapters.
        names: names of the layers.
        file: file with the means of `second_moments`.
        rank: rank of the adapters.
        transposed: whether weights are [inputs, outputs].

    Raises:
        StageError: the file is missing or broken.
        ModelError: the moments were measured on another model.
    """
    firsts = shared_inputs(model)
    check_sums(file, _shapes(model, firsts), "second moments")
    with safe_open(file, framework="pt") as moments:
        for name in names:
            part = model.get_submodule(name)
            weight = part.weight.detach().T if transposed else part.weight.detach()
            left, sizes, right = least_directions(weight, moments.get_tensor(firsts[name]).to(weight.device), rank)
            part.eigens = CordaEigens(sizes.float(), left.float(), right.T.float())


def _shapes(model: Any, firsts: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    widths = {name: inputs(model.get_submodule(name)) for name in firsts.values()}
    return {name: (width, width) for name, width in widths.items()}
