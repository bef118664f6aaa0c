"""Builds the optimizer, AdamW with or without update clipping, and chooses the parameters that get weight decay."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from adapt.config import TrainingConfig
from adapt.model import masked_updates, trainable

FACTOR = "rate_factor"
"""Key in a parameter group: factor by which the step's learning rate is multiplied for this group."""
IS_HEAD = "is_head"
"""Key in a parameter group: whether the group belongs to a language-model head that is first trained alone."""


def build_optimizer(
    model: nn.Module, training: TrainingConfig, sharded: bool = False, splits_head: bool = False
) -> torch.optim.AdamW:
    """Builds AdamW (arXiv 1711.05101) for the trained parameters of a model.

    Weight decay applies to matrices, never to biases and norms. It applies to embeddings if
    none of their rows is frozen.

    Args:
        model: model, on the device that it trains on.
        training: training settings.
        sharded: whether ZeRO will replace each parameter with this rank's shard of it.
        splits_head: whether the language-model head gets separate groups, so that steps can train only the head.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decays = [training.weight_decay if p.ndim >= 2 and not masked_updates.has_held_rows(p) else 0.0 for p in trained]
    factors = _rate_factors(model, training)
    heads = head_parameters(model) if splits_head else set()
    settings: dict[str, Any] = {
        "lr": training.learning_rate,
        "betas": (training.beta1, training.beta2),
        "eps": training.epsilon,
        "fused": True,
    }
    options = [(decay, factors.get(p, 1.0), p in heads) for p, decay in zip(trained, decays, strict=True)]
    if training.optimizer == "stable_adamw":
        groups = [_group([p], *chosen) for p, chosen in zip(trained, options, strict=True)]
        return StableAdamW(groups, **settings, sharded=sharded)
    by_setting: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter, chosen in zip(trained, options, strict=True):
        by_setting.setdefault(chosen, []).append(parameter)
    groups = [_group(by_setting[chosen], *chosen) for chosen in sorted(by_setting, reverse=True)]
    return torch.optim.AdamW(groups, **settings)


def _group(parameters: list[nn.Parameter], decay: float, factor: float, is_head: bool) -> dict[str, Any]:
    return {"params": parameters, "weight_decay": decay, FACTOR: factor, IS_HEAD: is_head}


def head_parameters(model: Any) -> set[nn.Parameter]:
    """Returns the parameters of a model's head. Embeddings tied to the head belong to the base model."""
    return set(model.parameters()) - set(model.base_model.parameters())


def _rate_factors(model: Any, training: TrainingConfig) -> dict[nn.Parameter, float]:
    """Returns the factor of the learning rate, keyed by parameter. Returns an empty mapping if all factors are 1."""
    if training.embedding_rate == training.layer_decay == 1:
        return {}
    named = dict(model.named_parameters())
    factors = trainable.rate_factors(named, model.config.model_type, training)
    return {parameter: factors[name] for name, parameter in named.items()}


def set_learning_rate(groups: list[dict[str, Any]], rate: float, head_alone: bool = False) -> None:
    """Sets the learning rate of each parameter group to `rate` times the group's factor.

    Args:
        groups: parameter groups of the optimizer.
        rate: learning rate of the step.
        head_alone: whether only the language-model head is trained in this step. The learning rate of all other groups
            is then 0, so that neither gradients nor weight decay change their parameters. AdamW's moments are still
            updated.
    """
    for group in groups:
        group["lr"] = 0.0 if head_alone and not group.get(IS_HEAD) else rate * group.get(FACTOR, 1.0)


class StableAdamW(torch.optim.AdamW):
    """AdamW with update clipping (Wortsman et al., arXiv 2304.13013, algorithm 2).

    The learning rate of a tensor is divided by max(1, RMS). RMS^2 is the mean of g^2 / max(v, eps^2) over the tensor,
    where v is the bias-corrected mean of its squared gradients. Everything else, including the state, is as in torch's
    AdamW.

    Args:
        groups: parameter groups with one parameter each. ZeRO flattens, pads and shards each group separately, so that
            each share belongs to a single parameter.
        sharded: whether ZeRO shards the groups. Sums over shares are then added over the ranks of the default process
            group, so that the RMS is the RMS of the whole parameter.
        **settings: arguments of AdamW.
    """

    def __init__(self, groups: list[dict[str, Any]], *, sharded: bool, **settings: Any) -> None:
        super().__init__(groups, **settings)
        self._sharded = sharded
        # the device on which sums are added over ranks, because ZeRO may move parameters to the CPU
        self._device = groups[0]["params"][0].device
        for group in self.param_groups:
            group["numel"] = group["params"][0].numel()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates the groups whose parameter has a gradient, because ZeRO sets gradients of one group at a time."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if any(p.grad is not None for p in group["params"])]
        rates = [group["lr"] for group in self.param_groups]
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate / self._rms(group).clamp(min=1)
        super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        self.param_groups = groups

    def _rms(self, group: dict[str, Any]) -> torch.Tensor:
        (parameter,) = group["params"]
        state, (_, beta2) = self.state[parameter], group["betas"]
        squares = parameter.grad.square()
        steps = state["step"] + 1 if state else squares.new_ones(())
        mean = squares * (1 - beta2) if not state else state["exp_avg_sq"].lerp(squares, 1 - beta2)
        mean /= 1 - beta2**steps
        total = (squares / mean.clamp(min=group["eps"] ** 2)).sum()
        if self._sharded:
            shares = total.to(self._device)
            dist.all_reduce(shares)
            total = shares.to(total.device)
        return torch.sqrt(total / group["numel"])
