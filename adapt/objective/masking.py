"""What masking objectives share: which tokens may be predicted, in which units, and what is shown in their place."""

from abc import abstractmethod

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.objective.base import Batch, Corrupted, Objective
from adapt.objective.noise import uniform
from adapt.objective.units import at_least_one, take_units, unit_lengths
from adapt.schema import marks_of

ORDER, REPLACEMENT, TOKEN, CROSSING, WORD_CROSSING, LENGTH = range(6)
"""Streams of random numbers: what each is drawn for."""


class Masking(Objective):
    """Predicts `mask_fraction` of each row's ordinary tokens, chosen unit by unit, at least one unit.

    Of the predicted tokens, 80% are shown as the mask token, 10% as a random ordinary token and 10% as they are
    (the shares are configurable; Devlin et al. 2019). All draws depend on (seed, epoch, row, position) only.

    Args:
        config: the shares.
        tokenizer: the model's own; says which ids are special and which is the mask.
        seed: the run's seed.
    """

    replaces_units = False
    """Whether the tokens of a unit are all masked, all random or all kept, rather than each by itself."""

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.mask_id = int(tokenizer.mask_token_id)
        special = sorted(set(tokenizer.all_special_ids))
        ordinary = torch.ones(max(len(tokenizer), max(special) + 1), dtype=torch.bool)
        ordinary[special] = False
        self._is_ordinary = ordinary
        self._ordinary_ids = ordinary.nonzero().flatten()

    def columns(self) -> tuple[str, ...]:
        """Where units start, as tokenization saw it."""
        return marks_of(self.config.kind)

    @abstractmethod
    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """The units: of each token the position of its unit's first token, int64 [B, L]."""

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """Positions to predict: units in random order, as far as the budget lasts.

        Args:
            batch: the rows.
            eligible: bool [B, L], what may be predicted.
            heads: the units.

        Returns:
            bool [B, L]. The expected number is `mask_fraction` of a row's eligible tokens, unless its first unit alone
            is more than that.
        """
        size = unit_lengths(heads, eligible)
        order = self.draw(ORDER, batch)
        taken = take_units(order, size, self.budget(eligible), self.draw(CROSSING, batch)[:, 0])
        return at_least_one(taken, order, size).gather(1, heads) & eligible

    def predictable(self, batch: Batch) -> Tensor:
        """Ordinary tokens. A row of special tokens only still gives a target."""
        eligible = self._is_ordinary[batch.tokens] & batch.real
        return eligible | (batch.real & ~eligible.any(1, keepdim=True))

    def corrupt(self, batch: Batch) -> Corrupted:
        """Chooses and replaces tokens."""
        eligible = self.predictable(batch)
        heads = self.heads(batch, eligible)
        positions = self.choose(batch, eligible, heads)
        inputs = self._shown(batch, positions, heads)
        return Corrupted(inputs, batch.real, batch.starts, positions, batch.tokens[positions])

    def budget(self, eligible: Tensor) -> Tensor:
        """Tokens to predict in each row, float64 [B], not rounded."""
        return eligible.sum(1).double() * self.config.mask_fraction

    def draw(self, stream: int, batch: Batch) -> Tensor:
        """Uniform numbers in [0, 1) for what a stream is for, float64 [B, L]."""
        return uniform(self.seed, stream, batch.epochs, batch.rows, batch.tokens.shape[1])

    def _shown(self, batch: Batch, positions: Tensor, heads: Tensor) -> Tensor:
        action = self.draw(REPLACEMENT, batch)
        if self.replaces_units:
            action = action.gather(1, heads)
        masked = positions & (action < self.config.mask_token_fraction)
        shares = self.config.mask_token_fraction + self.config.random_token_fraction
        randomised = positions & ~masked & (action < shares)
        ordinary_ids = self._ordinary_ids  # a random token is never a special one
        random_tokens = ordinary_ids[(self.draw(TOKEN, batch) * len(ordinary_ids)).long()]
        return torch.where(masked, self.mask_id, torch.where(randomised, random_tokens, batch.tokens))
