"""Defines the masking objectives, which hide and predict some tokens of a row, singly or in units of several tokens.

- `mlm`: single tokens (Devlin et al. 2019; Don't Stop Pretraining, section 3).
- `whole_word`: whole words. Either all tokens of a word are predicted or none (Devlin's update of BERT, May 2019).
- `entity`: whole named entities and whole words outside of entities (ERNIE, Sun et al., arXiv 1904.09223).
- `mntp`: single tokens. A decoder with bidirectional attention predicts each token at the position before it
  (LLM2Vec, BehnamGhader et al., arXiv 2404.05961).
- `span`: runs of several words (SpanBERT, Joshi et al., arXiv 1907.10529).
- `difference`: single tokens. Words that are frequent in the domain and rare in general text are chosen more often
  (Difference-Masking, Wilf et al., arXiv 2305.14577).

The position of a unit's first token is called the unit's head. A tensor with one value per unit, such as the unit's
size, has the shape of the rows and stores the value at the unit's head. Each random number depends only on (seed,
stream, epoch, row, position). So masks do not depend on batch size, number of workers, device or resuming, and a row
gets new masks in each epoch.

`make` creates the objective of a configuration.
"""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adapt.config import ObjectiveConfig
from adapt.config.training import FROM_ENTITIES, MASKED, RANDOM, SPAN_STOP, SPAN_WORDS
from adapt.objective.objective import Batch, Corrupted, Objective
from adapt.objective.table import OBJECTIVES
from adapt.objective.word_weights import WordWeights
from adapt.support.schema import ENTITIES, UNIT_STARTS, WORD_STARTS, marks_of
from adapt.support.splitmix import GOLDEN, mix

ORDER, REPLACEMENT, TOKEN, CROSSING, WORD_CROSSING, LENGTH, GENERATED = range(7)
"""Numbers of streams of random numbers. Each stream has one purpose and is independent of the others."""


class Masking(Objective):
    """Base class of masking objectives, which predict a share `mask_fraction` of each row's ordinary tokens.

    Units of one or more tokens are chosen at random, at least one unit per row.

    Of the predicted tokens, 80% are shown as the mask token, 10% as a random ordinary token and 10% unchanged
    (Devlin et al. 2019). All draws depend only on (seed, epoch, row, position).
    """

    replaces_units = False
    """Whether all tokens of a unit get the same treatment: masked, random or unchanged. If False, each token is drawn
    independently."""

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.mask_id = int(tokenizer.mask_token_id)
        special = sorted(set(tokenizer.all_special_ids))
        count = max(len(tokenizer), max(special) + 1)
        # ids may have gaps, so the last id may exceed the number of tokens
        ordinary = torch.ones(max(count, 1 + max(tokenizer.get_vocab().values())), dtype=torch.bool)
        ordinary[special] = False
        self._is_ordinary = ordinary
        self._ordinary_ids = ordinary[:count].nonzero().flatten()

    def columns(self) -> tuple[str, ...]:
        """Returns the columns that tokenization must write, such as where words start."""
        return marks_of(self.config.kind)

    @abstractmethod
    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Returns the units: for each token the position of its unit's first token, int64 [B, L]."""

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """Chooses the positions to predict: takes units in random order until `budget` tokens are reached.

        Args:
            batch: the rows.
            eligible: bool [B, L], the tokens that may be predicted.
            heads: for each token, the position of its unit's first token (the head), int64 [B, L].

        Returns:
            The positions to predict, bool [B, L]. In each row, their expected number is `mask_fraction` of the eligible
            tokens. It can be higher, because at least one unit per row is taken.
        """
        size = unit_lengths(heads, eligible)
        order = self.draw(ORDER, batch)
        taken = take_units(order, size, self.budget(eligible), self.draw(CROSSING, batch)[:, 0])
        return at_least_one(taken, order, size).gather(1, heads) & eligible

    def predictable(self, batch: Batch) -> Tensor:
        """Returns which tokens may be predicted, bool [B, L]: ordinary tokens, or if a row has none, all its tokens."""
        eligible = self._is_ordinary[batch.tokens] & batch.real
        return eligible | (batch.real & ~eligible.any(1, keepdim=True))

    def corrupt(self, batch: Batch) -> Corrupted:
        """Chooses the tokens to predict, and masks or replaces them."""
        eligible = self.predictable(batch)
        heads = self.heads(batch, eligible)
        positions = self.choose(batch, eligible, heads)
        inputs = self._shown(batch, positions, heads)
        return Corrupted(inputs, batch.real, batch.starts, positions, batch.tokens[positions])

    def budget(self, eligible: Tensor) -> Tensor:
        """Returns the number of tokens to predict in each row, float64 [B]. The number is not rounded."""
        return eligible.sum(1).double() * self.config.mask_fraction

    def draw(self, stream: int, batch: Batch) -> Tensor:
        """Returns the uniform random numbers of a stream for a batch, in [0, 1), float64 [B, L]."""
        return uniform(self.seed, stream, batch.epochs, batch.rows, batch.tokens.shape[1])

    def _shown(self, batch: Batch, positions: Tensor, heads: Tensor) -> Tensor:
        action = self.draw(REPLACEMENT, batch)
        if self.replaces_units:
            action = action.gather(1, heads)
        masked = positions & (action < MASKED)
        randomised = positions & ~masked & (action < MASKED + RANDOM)
        ordinary_ids = self._ordinary_ids  # never a special token
        random_tokens = ordinary_ids[(self.draw(TOKEN, batch) * len(ordinary_ids)).long()]
        return torch.where(masked, self.mask_id, torch.where(randomised, random_tokens, batch.tokens))


class MaskedLanguageModelling(Masking):
    """Predicts single tokens.

    The number of predictions in a row is exactly round(mask_fraction x ordinary tokens), and at least 1. If each token
    were drawn independently, the number would vary, and steps would take different times.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Returns the units to choose from: each token is one unit."""
        return torch.arange(eligible.shape[1]).expand_as(eligible)

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """Chooses, in each row, the eligible positions with the smallest numbers of `ordering`."""
        wanted = self.budget(eligible).round().long().clamp(min=1)
        order = self.ordering(batch).masked_fill(~eligible, torch.inf).argsort(dim=1)
        return torch.zeros_like(eligible).scatter_(1, order, heads < wanted[:, None]) & eligible

    def ordering(self, batch: Batch) -> Tensor:
        """Returns the numbers by which the positions of a row are sorted before the first are chosen, float64 [B, L].

        All positions are chosen with the same probability.
        """
        return self.draw(ORDER, batch)


class MaskedNextToken(MaskedLanguageModelling):
    """Predicts each masked token at the position before it (masked next-token prediction, LLM2Vec, arXiv 2404.05961).

    This suits decoders with bidirectional attention, because their pretraining was to predict the next token at each
    position. The first token of a document or row is not predicted, since no position is before it.
    """

    def predictable(self, batch: Batch) -> Tensor:
        """Returns which tokens may be predicted, bool [B, L]."""
        return super().predictable(batch) & ~batch.starts

    def corrupt(self, batch: Batch) -> Corrupted:
        """Masks tokens as `mlm` does, and moves each prediction to the position before the masked token."""
        masked = super().corrupt(batch)
        return replace(masked, positions=masked.positions.roll(-1, dims=1))


class WholeWordMasking(Masking):
    """Predicts whole words. Each token of a word is masked, replaced or unchanged independently, as in BERT.

    A word that is divided between two rows counts as two words, since rows are masked independently.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Returns the units to choose from: each word is one unit."""
        return heads_of(batch.marks[WORD_STARTS] | batch.starts)


class EntityMasking(Masking):
    """Predicts entities and words: half of the predicted tokens come from entities, if there are enough.

    If a row has too few entities, more words are predicted. If it has too few words, more entities are predicted. An
    entity that is divided between two rows counts as two entities.
    """

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Returns the units to choose from: each entity, and each word outside of entities, is one unit."""
        return heads_of(batch.marks[UNIT_STARTS] | batch.starts)

    def choose(self, batch: Batch, eligible: Tensor, heads: Tensor) -> Tensor:
        """Chooses entities up to the budget of entities, and words up to the budget of words."""
        order, size = self.draw(ORDER, batch), unit_lengths(heads, eligible)
        is_entity = batch.marks[ENTITIES]
        in_entities, in_words = size.where(is_entity, 0), size.where(~is_entity, 0)
        wanted = self.budget(eligible)
        due = torch.minimum(wanted * FROM_ENTITIES, in_entities.sum(1))
        from_words = torch.minimum(wanted - due, in_words.sum(1))
        taken = take_units(order, in_entities, wanted - from_words, self.draw(CROSSING, batch)[:, 0])
        taken |= take_units(order, in_words, from_words, self.draw(WORD_CROSSING, batch)[:, 0])
        return at_least_one(taken, order, size).gather(1, heads) & eligible


class DifferenceMasking(MaskedLanguageModelling):
    """Predicts as many single tokens per row as `mlm`. A token is drawn with the weight of its word.

    The chosen positions of a row have the largest u^(1/w), where u is a position's random number in (0, 1] and w the
    weight of its word. This is weighted sampling without replacement (Efraimidis and Spirakis 2006).
    `adapt.objective.word_weights` defines the weights. The paper does not draw by weights: it compares the embedding of
    each word with the embeddings of the words with the largest weights.
    """

    weights: WordWeights
    """The weights of the domain's words. `read` sets them."""

    def read(self, folder: Path) -> None:
        """Reads the weights of words from the folder of stage `words`."""
        self.weights = WordWeights.load(folder)

    def ordering(self, batch: Batch) -> Tensor:
        """Returns -ln(u) / w for each position, float64 [B, L]. The largest u^(1/w) has the smallest -ln(u) / w."""
        starts = batch.marks[WORD_STARTS] | batch.starts | ~batch.real
        weights = self.weights.at(batch.tokens.numpy().ravel(), starts.numpy().ravel())
        return -torch.log1p(-self.draw(ORDER, batch)) / torch.from_numpy(weights).view_as(batch.tokens)


def length_distribution(stop: float, longest: int) -> Tensor:
    """Returns the probabilities of span lengths 1 to `longest`: a truncated, renormalized geometric distribution.

    With SpanBERT's values, `stop` 0.2 and `longest` 10, the mean length is 3.8.

    Returns:
        The probabilities, float64 [longest].
    """
    chances = stop * (1 - stop) ** torch.arange(longest, dtype=torch.float64)
    return chances / chances.sum()


class SpanMasking(Masking):
    """Predicts spans of words, whose tokens are all masked, all random or all unchanged, as in SpanBERT.

    In each epoch, a row's words are divided anew into consecutive spans of random lengths, and some spans are chosen.
    So chosen spans cannot overlap. (SpanBERT redraws spans that overlap.) No span crosses the start of a document.
    """

    replaces_units = True

    def __init__(self, config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        super().__init__(config, tokenizer, seed)
        chances = length_distribution(SPAN_STOP, SPAN_WORDS)
        self._below = chances.cumsum(0)[:-1]  # random numbers between bounds n - 1 and n give length n

    def heads(self, batch: Batch, eligible: Tensor) -> Tensor:
        """Returns the units to choose from: each span is one unit."""
        words = ((batch.marks[WORD_STARTS] | batch.starts) & eligible).cumsum(1) - 1
        below = self._below
        lengths = torch.searchsorted(below, self.draw(LENGTH, batch), right=True) + 1
        span = torch.searchsorted(lengths.cumsum(1), words, right=True)
        return heads_of(span.diff(dim=1, prepend=span[:, :1]).bool() | batch.starts)


def heads_of(starts: Tensor) -> Tensor:
    """Returns, for each token, the position of its unit's first token.

    Args:
        starts: bool [B, L], True where units start, and at the first position of every row.

    Returns:
        int64 [B, L].
    """
    positions = torch.arange(starts.shape[1])
    return torch.where(starts, positions, 0).cummax(dim=1).values


def unit_lengths(heads: Tensor, eligible: Tensor) -> Tensor:
    """Counts each unit's eligible tokens, int64 [B, L]. The count is at the unit's first token, with 0 elsewhere."""
    return torch.zeros_like(heads).scatter_add_(1, heads, eligible.long())


def take_units(order: Tensor, size: Tensor, budget: Tensor, crossing: Tensor) -> Tensor:
    """Takes units in random order until the taken units have `budget` tokens.

    The first unit that does not fit into the remaining budget is taken with probability (remaining budget) / (size of
    this unit). So the expected number of taken tokens equals the budget.

    Args:
        order: random numbers, float64 [B, L] in [0, 1). Units are sorted by the number at their first token.
        size: int64 [B, L], each unit's number of tokens, stored at the unit's first token, and 0 elsewhere.
        budget: float64 [B], number of tokens to take, at most `size.sum(1)`.
        crossing: float64 [B] in [0, 1), a random number per row. It decides whether the unit that exceeds the budget is
        taken.

    Returns:
        bool [B, L], True at the first token of each taken unit.
    """
    places = _ranked(order, size).argsort(dim=1, stable=True)
    ordered = size.gather(1, places)
    before = ordered.cumsum(1) - ordered
    share = (budget[:, None] - before) / ordered.clamp(min=1)  # share of each unit that fits into the budget
    return torch.zeros_like(places, dtype=torch.bool).scatter_(1, places, (crossing[:, None] < share) & (ordered > 0))


def at_least_one(taken: Tensor, order: Tensor, size: Tensor) -> Tensor:
    """Takes the first unit in random order, in rows where no unit is taken yet. Arguments are as for `take_units`."""
    first = torch.zeros_like(taken).scatter_(1, _ranked(order, size).argmin(1, keepdim=True), True)
    return taken | (first & ~taken.any(1, keepdim=True))


def _ranked(order: Tensor, size: Tensor) -> Tensor:
    """Returns the units' random numbers. Positions without a unit get 2, so that they are sorted last."""
    return order.masked_fill(size == 0, 2.0)


def uniform(seed: int, stream: int, epochs: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    """Returns uniform numbers in [0, 1) that depend only on the arguments and the position.

    Args:
        seed: the run's seed.
        stream: number of the stream. Different streams give independent numbers for the same position.
        epochs: epoch of each row, int64 [B].
        rows: number of each row in the corpus, int64 [B].
        length: number of positions in a row.

    Returns:
        float64 [B, length].
    """
    state = np.full(len(rows), (seed + stream * int(GOLDEN)) % 2**64, np.uint64)
    for numbers in (epochs, rows):
        state = mix(state) + numbers.numpy().astype(np.uint64) * GOLDEN  # may overflow; uint64 arrays wrap around
    positions = np.arange(1, length + 1, dtype=np.uint64)
    bits = mix(mix(state)[:, None] + positions * GOLDEN)
    return torch.from_numpy((bits >> np.uint64(11)) * 2.0**-53)


def make(config: ObjectiveConfig, tokenizer: PreTrainedTokenizerBase, seed: int, options: Any = None) -> Objective:
    """Creates the objective of a configuration.

    Raises:
        ConfigError: a user's own objective cannot be imported, or is not an objective.
    """
    kind = OBJECTIVES.load(config.kind)
    made = kind(config, tokenizer, seed) if issubclass(kind, Masking) else kind()
    if options is not None:
        made.options = options
    return made
