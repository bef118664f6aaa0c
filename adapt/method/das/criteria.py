"""Measures the importance of units by gradients at their gates, or by pruning criteria on their weights.

Criterion `gate` is the mean absolute gradient of the loss at a unit's gate (arXiv 2302.03241, section 4.1). A gate
is a factor of 1 on a unit's output, and is never trained. The rows are split into groups: each group is one row or one
batch. The gradient of each group's mean loss is computed separately, so that gradients of different groups do not
cancel out.

The other criteria (docs/science/equations.md, section "DAS") use the weights that belong to a unit
(`adapt.model.layers.by_parameter`): `magnitude` (arXiv 1506.02626) needs no text, and `taylor` (arXiv 1906.10771) is
the first-order change of the loss if all weights of the unit were 0.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from adapt.model.layers import KINDS, Gates, Kind, by_parameter, ones
from adapt.model.packing.packed import sent
from adapt.objective.objective import Batch, Corrupted


class Judged(Protocol):
    """A loss whose gradients measure importance: an objective, or `adapt.method.das.contrast.Disagreement`."""

    def corrupt(self, batch: Batch) -> Corrupted:
        """Returns the rows as the model sees them, and the positions at which the loss is computed."""

    def loss(self, model: torch.nn.Module, corrupted: Corrupted) -> Tensor:
        """Returns the loss summed over the positions of `corrupted`."""


@dataclass(frozen=True)
class MeasureSettings:
    """Options for measuring gradients."""

    granularity: Literal["batch", "example"] = "batch"
    """Whether one gradient is computed for all rows of a batch together (`batch`), or one for each row (`example`)."""
    dropout_seed: int | None = None
    """Seed that determines the dropout, together with the batch's number. None runs the model without dropout."""
    embeddings: Literal["free", "gradient", "frequency"] = "free"
    """What is measured per token: the norm of the `gradient` at its embedding, its `frequency`, or nothing (`free`)."""
    rows: int = 64
    """Maximum number of rows per pass. The gradients of a larger batch are summed before their size is computed."""
    dtype: torch.dtype = torch.float32
    """Precision of autocast."""


@dataclass(frozen=True)
class Sums:
    """Sizes of gradients, summed over groups of rows. One gradient is computed per group.

    The tensors are float64. After all batches were added, they are on the CPU.
    """

    units: dict[Kind, Tensor]
    """Summed sizes of gradients at each unit, keyed by kind of unit (such as attention heads), [layers, units]."""
    tokens: Tensor | None
    """Summed sizes of gradients at each token's embedding, or counts of tokens, [vocabulary]; None if not measured."""
    groups: int
    text: int
    """Number of text tokens that were read."""

    def __add__(self, other: Self) -> "Sums":
        """Returns the sums over the groups of both objects."""
        units = {kind: sizes + other.units[kind] for kind, sizes in self.units.items()}
        tokens = None if self.tokens is None or other.tokens is None else self.tokens + other.tokens
        return Sums(units, tokens, self.groups + other.groups, self.text + other.text)

    @property
    def means(self) -> dict[Kind, Tensor]:
        """The size of the gradient at each unit, averaged over groups, keyed by kind of unit, [layers, units]."""
        return {kind: sizes / max(self.groups, 1) for kind, sizes in self.units.items()}


def gate_sizes(
    model: Any, gates: Gates, loss: Judged, batches: Iterable[tuple[int, Batch]], settings: MeasureSettings
) -> Sums:
    """Sums the sizes of a loss's gradients at the gates of all units.

    Weights, their gradients, the mode of the model and the random state are restored afterwards.

    Args:
        model: a model with its head, not wrapped.
        gates: gates of `model`.
        loss: the loss whose gradients measure the importance of units.
        batches: numbered batches. The same numbers and rows give the same sums in any process.
        settings: options for the gradients.
    """
    total: Sums | None = None  # kept on the device, so that the CPU need not wait for it after each batch
    gradients = TokenGradients(model) if settings.embeddings == "gradient" else nullcontext()
    with measuring_mode(model, settings.dropout_seed is not None), gradients as at_tokens:
        for number, batch in batches:
            if settings.dropout_seed is not None:
                torch.manual_seed(dropout_seed(settings.dropout_seed, number))
            sums = _of_batch(model, gates, loss, batch, settings, at_tokens)
            total = total + sums if total else sums
    assert total, "no batches"
    units = {kind: sizes.cpu() for kind, sizes in total.units.items()}
    return replace(total, units=units, tokens=None if total.tokens is None else total.tokens.cpu())


def _of_batch(
    model: Any, gates: Gates, loss: Judged, batch: Batch, settings: MeasureSettings, at_tokens: "TokenGradients | None"
) -> Sums:
    device = next(model.parameters()).device
    seen = loss.corrupt(batch).bound_for(device)
    rows = len(seen.input_ids)
    by_row = settings.granularity == "example"
    groups = torch.arange(rows) if by_row else torch.zeros(rows, dtype=torch.int64)
    number = rows if by_row else 1
    judged = torch.zeros(number).index_add(0, groups, seen.positions.sum(1).float())

    leaves = {kind: gate[:, None].repeat(1, number, 1).requires_grad_() for kind, gate in ones(model).items()}
    sums = [torch.zeros_like(leaf) for leaf in leaves.values()]
    for part, group in zip(seen.split(settings.rows), groups.split(settings.rows), strict=True):
        owner = sent(group.repeat_interleave(part.real.sum(1)), device)
        values = leaves if by_row else {kind: leaf[:, 0] for kind, leaf in leaves.items()}
        autocast = torch.autocast(device.type, settings.dtype, enabled=settings.dtype != torch.float32)
        with autocast, gates.set(values, owner if by_row else None):
            value = loss.loss(model, part)
        wanted = at_tokens.taken(owner) if at_tokens else []
        gradients = torch.autograd.grad(value, [*leaves.values(), *wanted])
        for total, gradient in zip(sums, gradients, strict=False):  # ignores the last gradients, those of tokens
            total.add_(gradient)
        if at_tokens:
            at_tokens.add(gradients[len(sums) :])

    share = sent(judged.clamp(min=1), device)
    units = {kind: (total / share[:, None]).abs().sum(1).double() for kind, total in zip(leaves, sums, strict=True)}
    tokens = at_tokens.sizes(share) if at_tokens else None
    if settings.embeddings == "frequency":
        vocabulary = len(model.get_input_embeddings().weight)
        tokens = batch.tokens[batch.real].bincount(minlength=vocabulary).double()
    return Sums(units, tokens, int((judged > 0).sum()), int(batch.lengths.sum()))


@contextmanager
def measuring_mode(model: Any, training: bool) -> Iterator[None]:
    """Returns a context manager that sets all modules to training or evaluation mode and freezes all weights.

    Afterwards it restores the mode of each module, which weights are trainable, and the random state.
    """
    modes = [(module, module.training) for module in model.modules()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next(model.parameters()).device
    try:
        model.train(training).requires_grad_(False)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter in trained:
            parameter.requires_grad_()


def dropout_seed(seed: int, number: int) -> int:
    """Returns the dropout seed for the batch with this number."""
    return int(np.random.SeedSequence([seed % 2**64, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def over_units(model: Any, values: Mapping[str, Tensor]) -> dict[Kind, Tensor]:
    """Sums values over the weights of each unit, [layers, units]. If heads share a weight, its value is divided evenly.

    `by_parameter` does the reverse: it spreads the value of each unit over the unit's weights. The function uses this:
    if `spread` is the output of `by_parameter`, then the gradient of sum(values * spread) with respect to a unit's
    value is the sum of `values` over this unit's weights.

    Args:
        model: the model with these units.
        values: a tensor of each parameter's shape, keyed by name. Parameters that belong to no unit are ignored.
    """
    leaves = {kind: gate.requires_grad_() for kind, gate in ones(model).items()}
    with torch.enable_grad():
        spread = by_parameter(model, leaves)
        total = torch.stack([(values[name] * each).sum() for name, each in spread.items()]).sum()
        sums = torch.autograd.grad(total, [leaves[kind] for kind in KINDS])
    return dict(zip(KINDS, sums, strict=True))


def magnitudes(model: Any) -> dict[Kind, Tensor]:
    """Returns the norm of each unit's weights, keyed by kind of unit, [layers, units]."""
    weights = _owned(model)
    squares = over_units(model, {name: weight.detach().square() for name, weight in weights.items()})
    return {kind: sums.sqrt() for kind, sums in squares.items()}


def weight_sizes(
    model: Any, loss: Judged, batches: Iterable[tuple[int, Batch]], settings: MeasureSettings, criterion: str
) -> Sums:
    """Sums a pruning criterion of each unit over groups of rows, as `gate_sizes` does for gates.

    Args:
        model: a model with its head, not wrapped.
        loss: the loss whose gradients measure the importance of units.
        batches: numbered batches.
        settings: options for the gradients. Embeddings can only be measured by `frequency`.
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
    """Yields, for each group of rows, the gradient of the group's mean loss."""
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


class TokenGradients:
    """Collects the gradients at the output of the input embeddings, over several passes.

    Gradients are not taken at the weights of the embeddings, because the LM head may use the same weights. The gradient
    of the LM head is dense, so every group of rows would need a matrix of the vocabulary's size.

    Args:
        model: a model whose weights get no gradients.
    """

    def __init__(self, model: Any) -> None:
        self._module = model.get_input_embeddings()
        self._vocabulary = len(self._module.weight)
        self._seen: list[tuple[Tensor, Tensor]] = []  # token ids and embeddings of each pass
        self._keys: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def __enter__(self) -> Self:
        self._hook = self._module.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _keep(self, module: torch.nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        embeddings = output.detach().requires_grad_()
        self._seen.append((arguments[0], embeddings))
        return embeddings

    def taken(self, owner: Tensor) -> list[Tensor]:
        """Returns the embeddings of the passes since the last call. The caller then computes their gradients.

        Args:
            owner: int64 [N], the group of each token of a pass.
        """
        seen, self._seen = self._seen, []
        self._keys += [owner * self._vocabulary + ids.flatten() for ids, _ in seen]
        return [embeddings for _, embeddings in seen]

    def add(self, gradients: tuple[Tensor, ...]) -> None:
        """Stores the gradients of the embeddings that `taken` returned."""
        self._gradients += [gradient.flatten(0, -2) for gradient in gradients]

    def sizes(self, share: Tensor) -> Tensor:
        """Returns the norm of each token's gradient, summed over groups, and clears the gradients.

        Args:
            share: divisor of each group's gradients, [groups].

        Returns:
            float64 [vocabulary].
        """
        keys, rows = torch.cat(self._keys).unique(return_inverse=True)
        gradients = torch.cat(self._gradients).float()
        sums = gradients.new_zeros(len(keys), gradients.shape[1]).index_add(0, rows, gradients)
        norms = (sums.norm(dim=1) / share[keys // self._vocabulary]).double()
        self._keys, self._gradients = [], []
        sizes: Tensor = norms.new_zeros(self._vocabulary).index_add(0, keys % self._vocabulary, norms)
        return sizes
