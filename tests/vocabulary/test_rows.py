"""New rows: what they begin with, the logits that follow, and that nothing else moves."""

from pathlib import Path

import pytest
import torch

from adapt.model.load import load_model
from adapt.vocabulary.rows import INITS, add_rows
from tests.model.architectures import random_model

PIECES = {100: [7, 8, 9], 101: [10, 11]}
"""New ids, of a vocabulary of 100."""


@pytest.fixture(params=["bert", "roberta", "distilbert", "gpt2", "llama"])
def model(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return random_model(request.param, vocab_size=100).eval()


def logits(model, ids=(5, 6, 7, 8)):  # type: ignore[no-untyped-def]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("init", INITS)
def test_logits_of_old_tokens_stay(model, init: str) -> None:  # type: ignore[no-untyped-def]
    before = logits(model)
    add_rows(model, PIECES, 100, init, 0)
    assert model.config.vocab_size == 102
    assert torch.allclose(logits(model)[:, :100], before, atol=1e-6)


def test_the_mean_of_pieces_gives_the_mean_of_their_logits(model) -> None:  # type: ignore[no-untyped-def]
    table = model.get_input_embeddings().weight.detach().clone()
    add_rows(model, PIECES, 100, "mean_subword", 0)
    found, rows = logits(model), model.get_input_embeddings().weight
    for number, pieces in PIECES.items():
        assert torch.allclose(rows[number], table[pieces].mean(0))
        assert torch.allclose(found[:, number], found[:, pieces].mean(1), atol=1e-5)


def test_zero_logits_are_zero(model) -> None:  # type: ignore[no-untyped-def]
    add_rows(model, PIECES, 100, "zero_logit", 0)
    assert torch.equal(logits(model)[:, 100:], torch.zeros(4, 2))


def test_draws_are_of_the_tables_distribution_and_of_the_seed() -> None:
    pieces = {100 + number: [1, 2] for number in range(400)}

    def drawn(seed: int) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = random_model("bert", vocab_size=100)
        table = model.get_input_embeddings().weight
        with torch.no_grad():
            table += 3
        add_rows(model, pieces, 100, "normal", seed)
        rows = model.get_input_embeddings().weight
        old, new = rows[:100], rows[100:]
        assert torch.allclose(new.mean(0), old.mean(0), atol=0.3 * float(old.std()))
        assert torch.allclose(new.std(0), old.std(0), rtol=0.25)
        return new.detach()

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_filling_behind_the_last_token_is_used_first(tiny_bert: Path) -> None:
    model = load_model(tiny_bert)
    size = model.config.vocab_size
    add_rows(model, {size - 2: [5, 6], size - 1: [7, 8]}, size - 2, "mean_subword", 0)
    assert model.config.vocab_size == size
