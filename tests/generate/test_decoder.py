"""Tests that texts from a refilled batch equal the texts that the model generates one at a time and without a cache."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from adapt.generate import decoder as decoder_module
from adapt.generate.decoder import Decoder
from adapt.generate.sampling import Request, draw_tokens, uniforms
from adapt.model.locate import Pretrained
from adapt.support.errors import ModelError
from tests.generate.toys import ENDS, tiny_decoder

SPECIAL = [0, 1, 3, 4]
REQUESTS = [
    Request(7 * number, [0, *range(10, 10 + length)], temperature, fewest, most)
    for number, (length, temperature, fewest, most) in enumerate(
        [(0, 1.0, 0, 40), (5, 0.5, 3, 7), (9, 1.5, 20, 30), (1, 1.0, 0, 1), (2, 0.7, 0, 25), (0, 1.0, 12, 12)] * 2
    )
]


def alone(pretrained: Pretrained, request: Request, seed: int, top_p: float) -> list[int]:
    """Generates a text with a whole forward pass per token."""
    model = AutoModelForCausalLM.from_pretrained(pretrained.model).eval()
    found: list[int] = []
    ends = {2, *ENDS}
    while len(found) < request.most:
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([[*request.prompt, *found]])).logits[:, -1]
        scores[:, SPECIAL] = -torch.inf
        if len(found) < request.fewest:
            scores[:, sorted(ends)] = -torch.inf
        draw = uniforms(seed, np.array([request.number], np.uint64), np.array([len(found)], np.uint64))
        hot = torch.tensor([request.temperature])
        token = int(draw_tokens(scores, hot, top_p, torch.from_numpy(draw)))
        if token in ends:
            break
        found.append(token)
    return found


@pytest.mark.parametrize(("family", "top_p"), [("gpt2", 1.0), ("llama", 0.9)])
def test_a_shared_batch_gives_each_text_as_if_it_were_alone(
    family: str, top_p: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_module, "SPARE", 3)  # with so few spare columns, they are moved often
    pretrained = tiny_decoder(tmp_path, family)
    decoder = Decoder(pretrained)
    expected = [alone(pretrained, request, 4, top_p) for request in REQUESTS]
    assert len({len(text) for text in expected}) > 4
    for at_once in (1, 3, 100):
        assert decoder.generate(REQUESTS, 4, top_p, at_once) == expected
    assert decoder.generate([], 4, top_p, 8) == []


def test_models_that_cannot_generate_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="needs a decoder"):
        Decoder(Pretrained(tiny_bert, tiny_bert))
    pretrained = tiny_decoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer"):
        Decoder(pretrained)
