"""Draws tokens from a model's scores, and orders the positions of a text that is sampled from an encoder.

The random number of a token depends only on the seed, the number of the text and the number of the token. So a text
does not depend on which texts are generated with it, in which order, or by which process, except for rounding.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adapt.model.linear_losses import drawn_from
from adapt.support.splitmix import GOLDEN, mix


class Request(NamedTuple):
    """A request to generate a text."""

    number: int
    """Number of the text, from 0 to 2^64 - 1, which determines its random numbers."""
    prompt: list[int]
    """Tokens with which the text begins, at least one."""
    temperature: float
    fewest: int
    """Minimum number of new tokens. The end-of-text token is not drawn earlier."""
    most: int
    """Maximum number of new tokens."""


def uniforms(seed: int, numbers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the random numbers of tokens, uniform in [0, 1), float64.

    Each text has its own sequence of the generator SplitMix64. The seed and the number of the text determine the
    generator's initial state.

    Args:
        seed: seed of the generation.
        numbers: for each token, the number of the text that it belongs to, uint64.
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
    """Returns which ids are never drawn, bool [vocabulary]: special tokens, and ids for which there is no token.

    Special tokens are tokens with a role, such as padding, and added tokens that are marked as special, such as the
    tokens that delimit a chat message or an image.

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


LENGTH, ORDER, TOKEN = 0, 1 << 40, 1 << 41
"""Offsets in a text's sequence of random numbers. They separate the numbers that determine the text's length, the
orders of its positions, and its tokens."""


def sweep_order(seed: int, number: int, length: int, sweep: int) -> np.ndarray:
    """Returns the random order in which a sweep draws the positions of a text, int64 [length]."""
    steps = (ORDER + sweep * (1 << 20) + np.arange(length)).astype(np.uint64)
    return np.argsort(uniforms(seed, np.full(length, number, np.uint64), steps), kind="stable")


def part_of_order(order: np.ndarray, part: int, share: float) -> np.ndarray:
    """Returns the positions that are masked together in a part of a sweep, in ascending order.

    The parts of a sweep contain every position once. A part has ceil(share x length) positions. The last parts may have
    fewer.
    """
    size = max(1, ceil(share * len(order)))
    return np.sort(order[part * size : (part + 1) * size])
