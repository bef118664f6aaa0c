"""Draws tokens from a model's scores, and samples texts from an encoder by drawing every position again and again.

The random number of a token depends only on the seed, the number of the text and the number of the token. So a text
does not depend on which texts are generated with it, in which order, or by which process, except for rounding.

Wang and Cho (2019, arXiv 1902.04094) read a masked language model as a Markov random field and sample from it by Gibbs
sampling: a text begins with mask tokens, and in each step a random position is masked and its token is drawn from the
model's distribution given all other tokens. Here, a sweep draws every position once, in a random order, and a share of
the positions is masked and drawn together. If the share is a single position, this is the sampler of Wang and Cho,
except that positions are drawn without replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adapt.config import GenerateConfig, SynthesizeConfig
from adapt.model.linear_losses import drawn_from
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed, sent
from adapt.model.sparse_prediction import predict_at
from adapt.model.tokenizer import load_tokenizer, sees_both_sides
from adapt.support.errors import ModelError
from adapt.support.splitmix import GOLDEN, mix


@dataclass(frozen=True)
class DrawSettings:
    """Settings for drawing tokens. The fields come from the section `generate` or `synthesize`."""

    temperatures: tuple[float, ...]
    top_p: float
    min_length: int
    max_length: int
    seed: int
    micro_batch: int

    @classmethod
    def of(cls, section: GenerateConfig | SynthesizeConfig) -> DrawSettings:
        """Returns the settings of a section of the configuration."""
        lengths = section.min_length, section.max_length
        return cls(tuple(section.temperatures), section.top_p, *lengths, section.seed, section.micro_batch)

    def temperature(self, number: int) -> float:
        """Returns the temperature of a text. Successive texts use successive temperatures of the configured list."""
        return self.temperatures[number % len(self.temperatures)]


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


class GibbsSampler:
    """Samples texts from an encoder, which is loaded on the GPU that this process may use, or else on the CPU.

    Args:
        pretrained: the model and its tokenizer.
        drawing: how tokens are drawn.
        sweeps: number of times that the token at each position is drawn.
        share: share of the positions that are masked and drawn together; at least one position.

    Raises:
        ModelError: the model is not an encoder, or cannot be loaded.
    """

    def __init__(self, pretrained: Pretrained, drawing: DrawSettings, sweeps: int, share: float) -> None:
        self._model: Any = load_model(pretrained.model, trust_remote_code=pretrained.trust_remote_code)
        if sees_both_sides(self._model.config):
            raise ModelError(
                f"{pretrained.model} is a decoder that was converted to an encoder, which mixture.replay_kind gibbs"
                " does not support",
                "set mixture.replay_kind to decoder, and generate.generator to the original decoder",
            )
        self.tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
        self._drawing, self._sweeps, self._share = drawing, sweeps, share
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.nn.Module.to(self._model, self._device)
        self._never = never_drawn(self.tokenizer, int(self._model.config.vocab_size), ()).to(self._device)
        empty = self.tokenizer("").input_ids
        self._before, self._after = empty[: len(empty) // 2], empty[len(empty) // 2 :]

    def sample(self, numbers: Sequence[int]) -> list[list[int]]:
        """Samples texts, and returns the tokens of each, without special tokens.

        The number of a text determines its length, temperature and random numbers.
        """
        drawing = self._drawing
        every = np.array(numbers, np.uint64)
        shares = uniforms(drawing.seed, every, np.full(len(every), LENGTH, np.uint64))
        lengths = drawing.min_length + (shares * (drawing.max_length - drawing.min_length + 1)).astype(np.int64)
        by_length = np.argsort(lengths, kind="stable")
        found: list[list[int]] = [[] for _ in numbers]
        for start in range(0, len(by_length), drawing.micro_batch):
            places = by_length[start : start + drawing.micro_batch]
            for place, tokens in zip(places, self._together(every[places], lengths[places]), strict=True):
                found[place] = tokens.tolist()
        return found

    @torch.inference_mode()
    def _together(self, numbers: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """Samples a batch of texts of about the same length."""
        drawing = self._drawing
        tokens = [np.full(length, self.tokenizer.mask_token_id, np.int64) for length in lengths]
        heat = np.array([drawing.temperature(int(number)) for number in numbers])
        for sweep in range(self._sweeps):
            orders = [sweep_order(drawing.seed, *text, sweep) for text in zip(numbers, lengths, strict=True)]
            for part in range(ceil(1 / self._share)):
                chosen = [part_of_order(order, part, self._share) for order in orders]
                if not any(map(len, chosen)):
                    continue
                scores = self._scores(tokens, chosen)
                owners = np.repeat(np.arange(len(tokens)), list(map(len, chosen)))
                positions = np.concatenate(chosen)
                steps = (TOKEN + sweep * drawing.max_length + positions).astype(np.uint64)
                draws = torch.from_numpy(uniforms(drawing.seed, numbers[owners], steps)).to(self._device)
                hot = torch.from_numpy(heat[owners]).float().to(self._device)
                drawn = draw_tokens(scores, hot, drawing.top_p, draws).cpu().numpy()
                ends = np.cumsum(list(map(len, chosen)))[:-1]
                for of, places, new in zip(tokens, chosen, np.split(drawn, ends), strict=True):
                    of[places] = new
        return tokens

    def _scores(self, tokens: Sequence[np.ndarray], chosen: Sequence[np.ndarray]) -> Tensor:
        """Masks the chosen positions, and returns the model's scores there, [positions, V]."""
        documents, places, start = [], [], 0
        for of, positions in zip(tokens, chosen, strict=True):
            masked = of.copy()
            masked[positions] = self.tokenizer.mask_token_id
            documents.append(Packed.single(torch.tensor([*self._before, *masked.tolist(), *self._after])))
            places.append(np.sort(positions) + start + len(self._before))
            start += len(self._before) + len(of) + len(self._after)
        packed = Packed.joined(*documents).to(self._device)
        at = sent(torch.from_numpy(np.concatenate(places)), self._device)
        scores = predict_at(self._model, packed, at).float()
        return scores.masked_fill(self._never, -torch.inf)


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
