"""How important units are by criteria of pruning, each over the weights that the unit's mask would hold.

Those are what `adapt.model.layers.units.by_parameter` says a unit owns. With w its weights and g the gradient of a
group's mean loss there: `magnitude` |w| (Han et al. 2015, arXiv 1506.02626), which needs no text; `gradient` the mean
of |g|; `fisher` the mean of |g|^2; `taylor` the mean of |sum w g|, how much the loss would change at first order if all
of them were 0 (Molchanov et al. 2019, arXiv 1906.10771).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from adapt.method.das.measure import Judged, MeasureSettings, Sums, dropout_seed, measuring_mode
from adapt.model.layers.units import KINDS, Kind, by_parameter, ones
from adapt.objective.base import Batch, Corrupted


def over_units(model: Any, values: Mapping[str, Tensor]) -> dict[Kind, Tensor]:
    """The sum over what each unit owns, [layers, units]; what several heads share is divided among them.

    Summing is the adjoint of spreading: `by_parameter` gives every parameter its unit's value, so the gradient of
    sum(values * spread) for a unit's value is the sum of the values that it was spread to.

    Args:
        model: whose units.
        values: of the parameters' shapes, by name; those that no unit owns are left out.
    """
    leaves = {kind: gate.requires_grad_() for kind, gate in ones(model).items()}
    with torch.enable_grad():
        spread = by_parameter(model, leaves)
        total = torch.stack([(values[name] * each).sum() for name, each in spread.items()]).sum()
        sums = torch.autograd.grad(total, [leaves[kind] for kind in KINDS])
    return dict(zip(KINDS, sums, strict=True))


def magnitudes(model: Any) -> dict[Kind, Tensor]:
    """The norm of each unit's weights, [layers, units]."""
    weights = _owned(model)
    squares = over_units(model, {name: weight.detach().square() for name, weight in weights.items()})
    return {kind: sums.sqrt() for kind, sums in squares.items()}


def weight_sizes(
    model: Any, loss: Judged, batches: Iterable[tuple[int, Batch]], settings: MeasureSettings, criterion: str
) -> Sums:
    """What a criterion gives each unit, summed over groups; compare `adapt.method.das.measure.gate_sizes`.

    Args:
        model: with its head, not wrapped.
        loss: on which units are judged.
        batches: numbered.
        settings: how. Of the embeddings, only how often tokens come can be told.
        criterion: `gradient`, `fisher` or `taylor`.
    """
    device = next(model.parameters()).device
    units = {kind: torch.zeros_like(gate, dtype=torch.float64) for kind, gate in ones(model).items()}
    vocabulary = len(model.get_input_embeddings().weight)
    tokens = torch.zeros(vocabulary, dtype=torch.float64) if settings.embeddings == "frequency" else None
    groups = text = 0
    with measuring_mode(model, settings.dropout_seed is not None):
        weights = _owned(model)
        for weight in weights.values():
            weight.requires_grad_()
        for number, batch in batches:
            if settings.dropout_seed is not None:
                torch.manual_seed(dropout_seed(settings.dropout_seed, number))
            text += int(batch.lengths.sum())
            if tokens is not None:
                tokens += batch.tokens[batch.real].bincount(minlength=vocabulary)
            for gradients in _by_group(model, weights, loss, loss.corrupt(batch).bound_for(device), settings):
                groups += 1
                for kind, sizes in _criterion(model, weights, gradients, criterion).items():
                    units[kind] += sizes
        for weight in weights.values():
            weight.requires_grad_(False)
    return Sums({kind: sums.cpu() for kind, sums in units.items()}, tokens, groups, text)


def _owned(model: Any) -> dict[str, Tensor]:
    return {name: model.get_parameter(name) for name in by_parameter(model, ones(model))}


def _by_group(
    model: Any, weights: Mapping[str, Tensor], loss: Judged, seen: Corrupted, settings: MeasureSettings
) -> Iterator[dict[str, Tensor]]:
    """The gradients of each group's mean loss."""
    for group in seen.split(1) if settings.granularity == "example" else [seen]:
        if not len(group.targets):
            continue
        sums = [torch.zeros_like(weight) for weight in weights.values()]
        for part in group.split(settings.rows):
            with torch.autocast(part.device.type, settings.dtype, enabled=settings.dtype != torch.float32):
                value = loss.loss(model, part) / len(group.targets)
            gradients = torch.autograd.grad(value, list(weights.values()), materialize_grads=True)
            for total, gradient in zip(sums, gradients, strict=True):
                total.add_(gradient)
        yield dict(zip(weights, sums, strict=True))


def _criterion(
    model: Any, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], criterion: str
) -> dict[Kind, Tensor]:
    if criterion == "taylor":
        products = {name: weights[name].detach() * gradient for name, gradient in gradients.items()}
        return {kind: sums.abs() for kind, sums in over_units(model, products).items()}
    squares = over_units(model, {name: gradient.square() for name, gradient in gradients.items()})
    return squares if criterion == "fisher" else {kind: sums.sqrt() for kind, sums in squares.items()}
