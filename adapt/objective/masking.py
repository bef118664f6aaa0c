"""Masking objectives: tokens of a row are hidden and predicted, one by one or in units of several.

- `mlm`: single tokens (Devlin et al. 2019; Don't Stop Pretraining, section 3).
- `whole_word`: a word is predicted with all its tokens or not at all (Devlin's update of BERT, May 2019).
- `entity`: names of things are predicted whole, and other words too (ERNIE, Sun et al., arXiv 1904.09223).
- `span`: runs of words are predicted together (SpanBERT, Joshi et al., arXiv 1907.10529).

A unit is identified by the position of its first token, its head: tensors of the rows' shape hold what is known of a
unit (its size, its random number) at its head. Each random number is a function of (seed, stream, epoch, row, position)
only. So masks do not depend on batch size, worker count, device or resume, and a row gets new masks in each epoch.

`make` turns the configuration into the objective.
"""

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.objective.objective import Batch, Corrupted, Objective
from adapt.objective.table import OBJECTIVES
from adapt.support.schema import ENTITIES, UNIT_STARTS, WORD_STARTS, marks_of
from adapt.support.splitmix import GOLDEN, mix

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


class WholeWordMasking(Masking):
    """Predicts whole words, each of whose tokens is masked, replaced or kept by itself, as BERT does.

    A word that is cut by the end of a row counts as two, since a row knows nothing of the others.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Words are units."""
        return heads_of(batch.marks[WORD_STARTS] | batch.starts)


class EntityMasking(Masking):
    """Predicts entities and words: `entity_fraction` of the predicted tokens from entities, as far as there are any.

    Words fill up, and entities where words are too few. An entity that is cut by the end of a row counts as two.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Entities and the words outside of them are units."""
        return heads_of(batch.marks[UNIT_STARTS] | batch.starts)

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """Takes the right number of units from the entities and from the words."""
        order, size = self.draw(ORDER, batch), unit_lengths(heads, eligible)
        is_entity = batch.marks[ENTITIES]
        in_entities, in_words = size.where(is_entity, 0), size.where(~is_entity, 0)
        wanted = self.budget(eligible)
        due = torch.minimum(wanted * self.config.entity_fraction, in_entities.sum(1))
        from_words = torch.minimum(wanted - due, in_words.sum(1))
        taken = take_units(order, in_entities, wanted - from_words, self.draw(CROSSING, batch)[:, 0])
        taken |= take_units(order, in_words, from_words, self.draw(WORD_CROSSING, batch)[:, 0])
        return at_least_one(taken, order, size).gather(1, heads) & eligible


def length_distribution(stop: float, longest: int) -> Tensor:
    """Chances of the lengths 1 to `longest` of a span: geometric, cut there and divided by their sum.

    With SpanBERT's 0.2 and 10 the mean is 3.8.

    Returns:
        float64 [longest].
    """
    chances = stop * (1 - stop) ** torch.arange(longest, dtype=torch.float64)
    return chances / chances.sum()


class SpanMasking(Masking):
    """Predicts spans of words, whose tokens are all masked, all random or all kept, as in SpanBERT.

    Spans of random lengths are laid one after another over a row's words, anew in each epoch, and some of them chosen.
    Unlike SpanBERT's trial and error they cannot overlap. None goes over the start of a document.
    """

    replaces_units = True

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        chances = length_distribution(config.span_stop, config.span_max_words)
        self._below = chances.cumsum(0)[:-1]  # a number below the n-th and not below the one before is length n

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Spans are units."""
        words = ((batch.marks[WORD_STARTS] | batch.starts) & eligible).cumsum(1) - 1
        below = self._below
        lengths = torch.searchsorted(below, self.draw(LENGTH, batch), right=True) + 1
        span = torch.searchsorted(lengths.cumsum(1), words, right=True)
        return heads_of(span.diff(dim=1, prepend=span[:, :1]).bool() | batch.starts)


def heads_of(starts: Tensor) -> Tensor:
    """The head of each token's unit.

    Args:
        starts: bool [B, L], where units start; True at the first position of a row.

    Returns:
        int64 [B, L].
    """
    positions = torch.arange(starts.shape[1])
    return torch.where(starts, positions, 0).cummax(dim=1).values


def unit_lengths(heads: Tensor, eligible: Tensor) -> Tensor:
    """Number of eligible tokens in each unit, int64 [B, L]: at its head, elsewhere 0."""
    return torch.zeros_like(heads).scatter_add_(1, heads, eligible.long())


def take_units(order: Tensor, size: Tensor, budget: Tensor, crossing: Tensor) -> Tensor:
    """Takes units in random order while the budget lasts.

    The unit that crosses the budget is taken with probability (what is left) / (its size), so the expected number of
    tokens taken is the budget exactly.

    Args:
        order: float64 [B, L] in [0, 1), at heads the random numbers that order the units.
        size: int64 [B, L], tokens of each unit at its head, and 0 elsewhere.
        budget: float64 [B], tokens to take, at most `size.sum(1)`.
        crossing: float64 [B] in [0, 1), random numbers that decide on the units that cross.

    Returns:
        bool [B, L], True at the heads of taken units.
    """
    places = _ranked(order, size).argsort(dim=1, stable=True)
    ordered = size.gather(1, places)
    before = ordered.cumsum(1) - ordered
    share = (budget[:, None] - before) / ordered.clamp(min=1)  # of the unit: 1 and more before the crossing one
    return torch.zeros_like(places, dtype=torch.bool).scatter_(1, places, (crossing[:, None] < share) & (ordered > 0))


def at_least_one(taken: Tensor, order: Tensor, size: Tensor) -> Tensor:
    """In rows where no unit is taken, takes the first in order. Arguments and result as of `take`."""
    first = torch.zeros_like(taken).scatter_(1, _ranked(order, size).argmin(1, keepdim=True), True)
    return taken | (first & ~taken.any(1, keepdim=True))


def _ranked(order: Tensor, size: Tensor) -> Tensor:
    """Random numbers of units, with all that is no unit, or none that may be taken, behind them."""
    return order.masked_fill(size == 0, 2.0)


def uniform(seed: int, stream: int, epochs: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    """Uniform numbers in [0, 1).

    Args:
        seed: the run's seed.
        stream: which of several independent numbers a position needs.
        epochs: int64 [B].
        rows: int64 [B], numbers of the rows in the corpus.
        length: positions in a row.

    Returns:
        float64 [B, length].
    """
    state = np.full(len(rows), (seed + stream * int(GOLDEN)) % 2**64, np.uint64)
    for numbers in (epochs, rows):
        state = mix(state) + numbers.numpy().astype(np.uint64) * GOLDEN  # wraps around, as arrays of uint64 do
    positions = np.arange(1, length + 1, dtype=np.uint64)
    bits = mix(mix(state)[:, None] + positions * GOLDEN)
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)


def make(config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> Objective:
    """The objective of a configuration.

    Args:
        config: kind and shares.
        tokenizer: the model's own.
        seed: of all draws.

    Raises:
        ConfigError: a user's own cannot be imported, or is no objective.
    """
    kind = OBJECTIVES.load(config.kind)
    return kind(config, tokenizer, seed) if issubclass(kind, Masking) else kind()
