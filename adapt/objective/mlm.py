"""Masked language modelling (Devlin et al. 2019; Don't Stop Pretraining, section 3): predict a share of the tokens."""

import torch
from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.model.head import predict_at
from adapt.objective.base import Batch, Corrupted
from adapt.objective.noise import uniform

_CHOICE, _REPLACEMENT, _TOKEN = range(3)


class MaskedLanguageModelling:
    """Predicts `mask_fraction` of each row's ordinary tokens, at least one.

    Of the predicted tokens, 80% are shown as the mask token, 10% as a random ordinary token and 10% as they are
    (the shares are configurable). The number of predictions in a row is exact, not binomial: round(fraction x ordinary
    tokens). That has the same mean, less variance, and steps of equal work.

    Args:
        config: the shares.
        tokenizer: the model's own; says which ids are special and which is the mask.
        seed: the run's seed.
    """

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
        """Nothing beyond the tokens."""
        return ()

    def corrupt(self, batch: Batch) -> Corrupted:
        """Chooses and replaces tokens; the draw depends on (seed, epoch, row, position) only."""
        tokens, device = batch.tokens, batch.tokens.device
        eligible = self._is_ordinary.to(device)[tokens] & batch.real
        eligible |= batch.real & ~eligible.any(1, keepdim=True)  # a row of special tokens only still gives a target
        noise = [uniform(self.seed, stream, batch.epochs, batch.rows, tokens.shape[1]) for stream in range(3)]
        positions = self._choose(noise[_CHOICE], eligible)

        config, action = self.config, noise[_REPLACEMENT]
        masked = positions & (action < config.mask_token_fraction)
        randomised = positions & ~masked & (action < config.mask_token_fraction + config.random_token_fraction)
        ordinary_ids = self._ordinary_ids.to(device)
        random_tokens = ordinary_ids[(noise[_TOKEN] * len(ordinary_ids)).long()]
        inputs = torch.where(masked, self.mask_id, torch.where(randomised, random_tokens, tokens))
        return Corrupted(inputs, batch.real, positions, tokens[positions])

    def _choose(self, noise: torch.Tensor, eligible: torch.Tensor) -> torch.Tensor:
        """The eligible positions with each row's smallest numbers: a uniform choice of exactly the wanted count."""
        wanted = (eligible.sum(1).double() * self.config.mask_fraction).round().long().clamp(min=1)
        order = noise.masked_fill(~eligible, 2.0).argsort(dim=1)
        rank = torch.empty_like(order).scatter_(
            1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
        )
        return (rank < wanted[:, None]) & eligible

    def losses(self, model: torch.nn.Module, corrupted: Corrupted) -> torch.Tensor:
        """Cross entropy at the predicted positions [nats], float32 [T]; the LM head sees no other position."""
        logits = predict_at(model, corrupted.input_ids, corrupted.attention_mask, corrupted.positions)
        return torch.nn.functional.cross_entropy(logits.float(), corrupted.targets, reduction="none")
