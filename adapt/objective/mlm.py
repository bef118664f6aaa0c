"""Masked language modelling (Devlin et al. 2019; Don't Stop Pretraining, section 3): predict a share of the tokens."""

import torch
from torch import Tensor

from adapt.objective.base import Batch
from adapt.objective.masking import ORDER, Masking


class MaskedLanguageModelling(Masking):
    """Predicts single tokens.

    The number of predictions in a row is exact, not binomial: round(fraction x ordinary tokens). That has the same
    mean, less variance, and steps of equal work.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Each token is a unit."""
        return torch.arange(eligible.shape[1]).expand_as(eligible)

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """The eligible positions with each row's smallest numbers: a uniform choice of exactly the wanted count."""
        wanted = self.budget(eligible).round().long().clamp(min=1)
        order = self.draw(ORDER, batch).masked_fill(~eligible, 2.0).argsort(dim=1)
        return torch.zeros_like(eligible).scatter_(1, order, heads < wanted[:, None]) & eligible
