"""Tests that tokens are drawn by their probability, and that texts of an encoder depend only on the seed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AddedToken, AutoModelForMaskedLM, TopPLogitsWarper

from adapt.config import GenerateConfig
from adapt.generate.makers import FromEncoder, temperature_of
from adapt.generate.sampling import (
    TOKEN,
    draw_tokens,
    never_drawn,
    part_of_order,
    sweep_order,
    uniforms,
)
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from tests.generate.toys import tiny_decoder
from tests.samples import VOCABULARY

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def finalized(value: int) -> int:
    """Computes SplitMix64's finalizer with Python's integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@pytest.mark.parametrize(("seed", "number", "step"), [(0, 0, 0), (3, 5, 7), (2**40, 2**63 + 1, 12)])
def test_random_numbers_are_those_of_splitmix64(seed: int, number: int, step: int) -> None:
    state = finalized((number * GOLDEN + finalized(seed)) & MASK)
    expected = (finalized((state + (step + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53
    (found,) = uniforms(seed, np.array([number], np.uint64), np.array([step], np.uint64))
    assert found == expected


def test_random_numbers_of_texts_and_steps_are_uniform_and_differ() -> None:
    numbers, steps = (each.ravel().astype(np.uint64) for each in np.meshgrid(np.arange(100), np.arange(100)))
    found = uniforms(1, numbers, steps)
    assert len(np.unique(found)) == len(found)
    assert np.histogram(found, 10, (0, 1))[0] == pytest.approx(np.full(10, 1000), abs=150)


@pytest.mark.parametrize("top_p", [0.3, 0.8, 0.95])
def test_only_the_nucleus_is_drawn_from(top_p: float) -> None:
    scores = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)) * 2
    kept = TopPLogitsWarper(top_p)(None, scores / 0.7) > -torch.inf  # type: ignore[arg-type]
    draws = torch.linspace(0, 1 - 1e-9, 2000, dtype=torch.float64)
    for row in range(4):
        drawn = draw_tokens(scores[row].expand(2000, -1), torch.full((2000,), 0.7), top_p, draws)
        assert set(drawn.tolist()) == set(kept[row].nonzero().flatten().tolist())


def test_shares_of_drawn_tokens_are_their_probabilities() -> None:
    scores = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]])
    draws = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    drawn = draw_tokens(scores.expand(10_000, -1), torch.full((10_000,), 2.0), 1.0, draws)
    shares = torch.bincount(drawn, minlength=4) / 10_000
    assert shares.tolist() == pytest.approx((scores / 2).softmax(1)[0].tolist(), abs=2e-4)


def test_added_tokens_that_are_marked_as_special_are_not_drawn(tmp_path: Path) -> None:
    """A chat template's tokens have no role such as padding, so they are not among the tokenizer's special ids."""
    tokenizer = load_tokenizer(tiny_decoder(tmp_path).model)
    size = len(tokenizer)
    tokenizer.add_tokens([AddedToken("<|image|>", special=True), AddedToken("<|end|>", special=True), "word"])
    never = never_drawn(tokenizer, size + 5, [size + 1, 2])
    assert size not in tokenizer.all_special_ids
    assert never[size:].tolist() == [True, False, False, True, True]
    # the tokens 2 (end of text) and 5 can be drawn, <mask> (4) cannot
    assert never[:6].tolist() == [True, True, False, True, True, False]


SECTION = GenerateConfig(
    temperatures=[0.8, 1.2],
    min_length=4,
    max_length=9,
    sweeps=2,
    seed=5,
    micro_batch=3,
)


@pytest.mark.parametrize(("length", "share"), [(1, 0.15), (9, 0.15), (100, 0.3), (7, 1.0), (20, 1e-3)])
def test_the_parts_of_a_sweep_contain_every_position_once(length: int, share: float) -> None:
    order = sweep_order(0, 3, length, 1)
    parts = [part_of_order(order, part, share) for part in range(int(np.ceil(1 / share)))]
    assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    assert max(map(len, parts)) == max(1, int(np.ceil(share * length)))


def test_sampling_one_position_at_a_time_equals_a_plain_gibbs_sampler(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapt.generate.makers.MASKED_FRACTION", 1e-9 + 1 / 9)
    sampler = FromEncoder(Pretrained(tiny_bert, tiny_bert), SECTION)
    sampler.load()
    numbers = [0, 1, 2, 3, 11]
    found = sampler.sample(numbers)
    model = AutoModelForMaskedLM.from_pretrained(tiny_bert).eval()
    for number, text in zip(numbers, found, strict=True):
        share = float(uniforms(5, np.array([number], np.uint64), np.zeros(1, np.uint64))[0])
        length = 4 + int(share * 6)
        tokens = np.full(length, VOCABULARY.index("[MASK]"))
        for sweep in range(2):
            order = sweep_order(5, number, length, sweep)
            size = max(1, int(np.ceil((1e-9 + 1 / 9) * length)))
            for places in (np.sort(order[start : start + size]) for start in range(0, length, size)):
                tokens[places] = VOCABULARY.index("[MASK]")
                around = [VOCABULARY.index("[CLS]"), *tokens, VOCABULARY.index("[SEP]")]
                with torch.no_grad():
                    scores = model(input_ids=torch.tensor([around])).logits[0, 1 + places]
                scores[:, :5] = -torch.inf
                steps = (TOKEN + sweep * 9 + places).astype(np.uint64)
                draws = uniforms(5, np.full(len(places), number, np.uint64), steps)
                hot = torch.full((len(places),), temperature_of(SECTION, number))
                tokens[places] = draw_tokens(scores, hot, 1.0, torch.from_numpy(draws)).numpy()
        assert text == tokens.tolist()
    assert sampler.sample([11, 2]) == [found[4], found[2]]
