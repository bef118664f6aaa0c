"""Runs a model with gates on a rank, with our engine and without it."""

import torch
from torch import Tensor

from adapt.model.layers import Gates, Kind, ones
from adapt.objective.objective import Batch, Corrupted
from adapt.train.engine import Engine
from tests.train.toy import GLOBAL_BATCH, Objective, columns, model, settings


def rows(rank: int, world: int) -> Corrupted:
    """Returns a rank's share of a global batch."""
    return Objective().corrupt(Batch.of(columns(0, rank, world)))


def values() -> dict[Kind, Tensor]:
    """Returns gates for two groups of tokens, one tensor [layers, 2, units] per kind of unit."""
    draw = torch.Generator().manual_seed(0)
    return {
        kind: torch.rand(each.shape[0], 2, each.shape[1], generator=draw).requires_grad_()
        for kind, each in ones(model()).items()
    }


def owner(corrupted: Corrupted) -> Tensor:
    """Returns the group of each token of the packed sequence. The groups 0 and 1 alternate."""
    return torch.arange(int(corrupted.real.sum())) % 2


def through_engine(zero_stage: int, compiled: bool = False) -> tuple[float, dict[Kind, Tensor], float]:
    """Returns the loss of this rank's rows, the gradients of the gates, and the loss after the gates are removed."""
    import torch.distributed as dist

    toy, seen, gated = model(), rows(dist.get_rank(), dist.get_world_size()), values()
    gates = Gates(toy)
    if compiled:
        for layer in toy.bert.encoder.layer:
            layer.compile(backend="eager")
    engine = Engine(toy, settings(), zero_stage, "fp32", GLOBAL_BATCH, 1)
    with gates.set(gated, owner(seen)):
        loss = Objective().loss(engine.model, seen)
    engine.backward(loss)
    gradients = {kind: each.grad / dist.get_world_size() for kind, each in gated.items() if each.grad is not None}
    with torch.no_grad():
        after = Objective().loss(engine.model, seen).item()
    return loss.item(), gradients, after


def plainly(rank: int, world: int) -> tuple[float, dict[Kind, Tensor], float]:
    """Computes the results of `through_engine` without an engine."""
    toy, seen, gated = model(), rows(rank, world), values()
    after = Objective().loss(toy, seen).item()
    with Gates(toy).set(gated, owner(seen)):
        loss = Objective().loss(toy, seen)
    return loss.item(), dict(zip(gated, torch.autograd.grad(loss, list(gated.values())), strict=True)), after
