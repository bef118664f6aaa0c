"""Draws tokens from a model's scores, with random numbers that are a function of the text and the position.

The random number of a token depends only on the seed, the number of the text and the number of the token. So, except
for rounding, a text does not depend on the order of the texts, the other texts of its batch, or the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adapt.config import GenerateConfig, SynthesizeConfig
from adapt.model.linear_losses import drawn_from
from adapt.support.splitmix import GOLDEN, mix


@dataclass(frozen=True)
class DrawSettings:
    """How tokens are drawn; the fields are those of section `generate` or `synthesize`."""

    temperatures: tuple[float, ...]
    top_p: float
    min_length: int
    max_length: int
    seed: int
    micro_batch: int

    @classmethod
    def of(cls, section: GenerateConfig | SynthesizeConfig) -> DrawSettings:
        """Takes the settings of a section of the configuration."""
        lengths = section.min_length, section.max_length
        return cls(tuple(section.temperatures), section.top_p, *lengths, section.seed, section.micro_batch)

    def temperature(self, number: int) -> float:
        """Returns the temperature of a text. Successive texts take the temperatures in turn."""
        return self.temperatures[number % len(self.temperatures)]


class Request(NamedTuple):
    """A text to generate."""

    number: int
    """Number of the text, from 0 to 2^64 - 1, which determines its random numbers."""
    prompt: list[int]
    """Tokens with which the text begins, at least one."""
    temperature: float
    fewest: int
    """Smallest number of new tokens; the end-of-text token is not drawn before."""
    most: int
    """Largest number of new tokens."""


def uniforms(seed: int, numbers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the random numbers of tokens, uniform in [0, 1), float64.

    Each text has its own sequence of the generator SplitMix64, which begins at a state that the seed and the number of
    the text determine.

    Args:
        seed: seed of the generation.
        numbers: number of the text of each token, uint64.
        steps: number of each token in its text, uint64.
    """
    states = mix(numbers * GOLDEN + mix(np.array([seed], np.uint64)))
    bits: np.ndarray = mix(states + (steps + np.uint64(1)) * GOLDEN) >> np.uint64(11)
    return bits * 2.0**-53


def draw_tokens(scores: Tensor, temperatures: Tensor, top_p: float, draws: Tensor) -> Tensor:
    """Draws a token for each row, int64 [rows].

    Args:
        scores: scores of the vocabulary, [rows, V]; a token with the score -inf is never drawn.
        temperatures: temperature of each row, [rows]; the scores are divided by it.
        top_p: tokens are drawn from the smallest set of most probable tokens whose total probability is at least
            top_p (nucleus sampling, arXiv 1904.09751).
        draws: random numbers in [0, 1), float64 [rows].
    """
    probabilities = (scores.float() / temperatures[:, None]).softmax(1)
    if top_p == 1:
        return drawn_from(probabilities, draws)
    ordered, tokens = probabilities.sort(dim=1, descending=True, stable=True)
    before = ordered.double().cumsum(1) - ordered
    places = drawn_from(ordered.masked_fill(before >= top_p, 0.0), draws)
    return tokens.gather(1, places[:, None]).squeeze(1)


def never_drawn(tokenizer: Any, vocabulary: int, but: Iterable[int]) -> Tensor:
    """Returns which scores are never drawn: those of special tokens, and those without a token. Bool [vocabulary].

    Special tokens are those with a role, such as padding, and added tokens that are marked as special, such as the
    marks of a chat or an image.

    Args:
        tokenizer: tokenizer of the model.
        vocabulary: number of scores of the model, which may be padded beyond the tokenizer's tokens.
        but: special tokens that may be drawn, such as the end-of-text token.
    """
    never = torch.ones(vocabulary, dtype=torch.bool)
    never[[number for number in tokenizer.get_vocab().values() if number < vocabulary]] = False
    marked = [number for number, token in tokenizer.added_tokens_decoder.items() if token.special]
    never[[number for number in (*tokenizer.all_special_ids, *marked) if number < vocabulary]] = True
    never[list(but)] = False
    return never
