"""Tests that distilled embedding rows lower the error on unseen texts, and that all other weights stay the same."""

import numpy as np
import pytest
import torch

from adapt.config import ObjectiveConfig
from adapt.model.packing import attention
from adapt.objective.masking import make
from adapt.vocabulary.new_rows import (
    TOKENS,
    OnlyRows,
    add_rows,
    batches_in_turn,
    embedding_table,
    match_states,
    snippets_of,
    state_error,
    warm_up,
)
from tests.model.architectures import CAUSAL, random_model

PIECES = {100: [7, 8, 9], 101: [10, 11]}


def pair(name: str):  # type: ignore[no-untyped-def]
    """Returns a model and its copy with new rows. In both models, tokens attend only to tokens of the same document."""
    teacher, student = random_model(name, vocab_size=100).eval(), random_model(name, vocab_size=100).eval()
    add_rows(student, PIECES, 100, "mean_subword", 0)
    for model in (teacher, student):
        model.set_attn_implementation(attention.NAME)
    return teacher, student


def snippets(count: int, causal: bool) -> list[np.ndarray]:
    """Returns random snippets, each of which contains one new token.

    For an encoder, the new token is the last token. Tokens after it would have other
    positions than with the old pieces, and no embedding row can correct that.
    """
    draws = np.random.default_rng(0)
    made = [draws.integers(12, 90, 10) for _ in range(count)]
    for number, snippet in enumerate(made):
        snippet[draws.integers(1, 8) if causal else -1] = 100 + number % 2
    return made


@pytest.mark.parametrize("name", ["bert", "roberta", "llama"])
def test_the_error_falls_and_other_rows_stay(name: str) -> None:
    teacher, student = pair(name)
    table = embedding_table(student).detach().clone()
    steps, before, after = match_states(
        teacher, student, PIECES, snippets(200, name in CAUSAL), 1e-2, name in CAUSAL, torch.device("cpu")
    )
    assert steps == 12
    assert after < 0.9 * before
    assert torch.equal(embedding_table(student)[:100], table[:100])
    assert not torch.equal(embedding_table(student)[100:], table[100:])


def test_there_is_no_error_where_no_token_is_new() -> None:
    teacher, student = pair("bert")
    old = [np.arange(12, 20), np.arange(30, 36)]
    assert float(state_error(teacher, student, PIECES, old, False, torch.device("cpu"))) == pytest.approx(0, abs=1e-9)


def test_states_before_a_new_token_are_left_out_in_causal_models() -> None:
    teacher, student = pair("llama")
    last = [np.array([12, 13, 14, 100])]
    assert float(state_error(teacher, student, PIECES, last, True, torch.device("cpu"))) == 0


def test_snippets_hold_new_tokens_and_each_has_no_more_than_asked() -> None:
    documents = [np.arange(200) % 50, np.full(300, 3), np.arange(500) % 7]
    documents[0][[60, 61, 150]] = 100, 101, 100
    documents[2][::10] = 101
    found = list(snippets_of(documents, PIECES, 5))
    assert all(np.isin(snippet, [100, 101]).any() and len(snippet) <= TOKENS for snippet in found)
    assert sum((snippet == 100).sum() for snippet in found) == 2
    assert 5 <= sum((snippet == 101).sum() for snippet in found) <= 5 + TOKENS // 10


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_warm_up_trains_only_new_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedTokenizerFast

    from tests.tokenizers import wordpiece

    _, model = pair(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fast = PreTrainedTokenizerFast(tokenizer_object=wordpiece(), mask_token="<mask>", pad_token="<pad>")
    monkeypatch.setattr("adapt.objective.masking.RANDOM", 0.0)
    objective = make(ObjectiveConfig(kind="causal" if name in CAUSAL else "mlm"), fast, 0)
    text = [np.tile([20, 100, 21, 101], 50) for _ in range(80)]
    steps, first, last = warm_up(model, objective, text, [100, 101], 30, 3e-2, 32, torch.device("cpu"))
    assert steps == 30
    assert last < 0.8 * first
    for key, value in model.state_dict().items():
        old = value[:100] if len(value) == 102 else value
        assert torch.equal(old, before[key][: len(old)]), key


def test_rows_are_cut_from_documents_one_after_another() -> None:
    documents = [np.arange(100), np.arange(100, 260)]
    (batch,) = batches_in_turn(documents, 16)
    assert torch.equal(batch.tokens.flatten(), torch.arange(256))
    assert batch.starts.flatten().nonzero().flatten().tolist() == sorted({*range(0, 256, 16), 100})


def test_an_optimizer_of_rows_freezes_the_rest() -> None:
    _, model = pair("bert")
    OnlyRows(model, [100], 1e-3)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("word_embeddings" in name or name.endswith("bias") for name in names)
