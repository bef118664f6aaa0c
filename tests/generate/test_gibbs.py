"""Gibbs sampling masks and draws every position once per sweep, from the model's distribution given all others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from adapt.generate.gibbs import TOKEN, GibbsSampler, part_of_order, sweep_order
from adapt.generate.token_draws import DrawSettings, draw_tokens, uniforms
from adapt.model.locate import Pretrained
from tests.samples import VOCABULARY

DRAWING = DrawSettings((0.8, 1.2), 1.0, 4, 9, seed=5, micro_batch=3)


@pytest.mark.parametrize(("length", "share"), [(1, 0.15), (9, 0.15), (100, 0.3), (7, 1.0), (20, 1e-3)])
def test_the_parts_of_a_sweep_contain_every_position_once(length: int, share: float) -> None:
    order = sweep_order(0, 3, length, 1)
    parts = [part_of_order(order, part, share) for part in range(int(np.ceil(1 / share)))]
    assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    assert max(map(len, parts)) == max(1, int(np.ceil(share * length)))


def test_sampling_one_position_at_a_time_equals_a_plain_gibbs_sampler(tiny_bert: Path) -> None:
    sampler = GibbsSampler(Pretrained(tiny_bert, tiny_bert), DRAWING, sweeps=2, share=1e-9 + 1 / 9)
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
                hot = torch.full((len(places),), DRAWING.temperature(number))
                tokens[places] = draw_tokens(scores, hot, 1.0, torch.from_numpy(draws)).numpy()
        assert text == tokens.tolist()
    assert sampler.sample([11, 2]) == [found[4], found[2]]
