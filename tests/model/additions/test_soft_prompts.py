"""Tests soft prompts against a plain model whose inputs are the prompt's vectors followed by word embeddings."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from adapt.model.additions.domain_modules import choose_set, own_parameters, sets_of
from adapt.model.additions.soft_prompts import attach_prompts, begin_prompt
from adapt.model.additions.table import with_addition
from adapt.model.architecture import max_sequence_length
from adapt.model.load import load_base, load_model
from adapt.model.save_model import save_model
from adapt.model.sparse_prediction import loss_and_states
from adapt.model.states import hidden_states, text_features
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from tests.model.additions.test_bottlenecks import TEXTS, losses, shaken
from tests.model.families import FAMILIES, packed, plain, ready

LENGTH = 3


def prompted(family: str, sets: int = 1) -> Any:
    model = ready(family)
    attach_prompts(model, sets, LENGTH)
    return model


def written(family: str, vectors: torch.Tensor, texts: list[torch.Tensor]) -> list[Any]:
    """Returns the plain model's outputs for each text, computed separately with the vectors before the text."""
    model: Any = plain(family)
    table = model.get_input_embeddings()
    rows = [torch.cat((vectors, table(text)))[None] for text in texts]
    return [model(inputs_embeds=row, output_hidden_states=True) for row in rows]


def vectors_of(model: Any, number: int = 0) -> torch.Tensor:
    (sets,) = sets_of(model)
    prompt: Any = sets[number]
    found: torch.Tensor = prompt.vectors.detach()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_each_document_begins_with_the_prompt(family: str) -> None:
    """Checks losses and the states of all layers, for packed documents of different lengths and for separate rows."""
    model = shaken(prompted(family))
    expected = written(family, vectors_of(model), TEXTS)
    by_token = [
        cross_entropy(each.logits[0, LENGTH:], text, reduction="none")
        for each, text in zip(expected, TEXTS, strict=True)
    ]
    torch.testing.assert_close(losses(model), torch.cat(by_token).detach(), rtol=1e-4, atol=1e-5)
    layers = hidden_states(model, packed(TEXTS, 11))
    for number, layer in enumerate(layers):
        states = torch.cat([each.hidden_states[number][0, LENGTH:] for each in expected])
        torch.testing.assert_close(layer, states, rtol=1e-4, atol=1e-5)
    for text, each in zip(TEXTS, expected, strict=True):
        torch.testing.assert_close(model(text[None]).logits, each.logits[:, LENGTH:], rtol=1e-4, atol=1e-5)
    choose_set(model, None)
    assert torch.equal(losses(model), losses(ready(family)))


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "modernbert"])
def test_padding_does_not_change_the_outputs_of_rows(family: str) -> None:
    model, short = shaken(prompted(family)), TEXTS[1]
    rows = torch.stack([TEXTS[0], torch.cat((short, torch.ones(3, dtype=torch.int64)))])
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    found = model(input_ids=rows, attention_mask=mask).logits
    for row, text in zip(found, TEXTS, strict=True):
        torch.testing.assert_close(row[: len(text)], model(text[None]).logits[0], rtol=1e-4, atol=1e-5)


def test_only_the_prompt_gets_gradients() -> None:
    model = shaken(prompted("bert"))
    (prompt,) = own_parameters(model, 0)
    model.requires_grad_(False)
    prompt.requires_grad_(True)
    tokens = torch.cat(TEXTS)
    total, states = loss_and_states(model, packed(TEXTS, 11), torch.arange(len(tokens)), tokens)
    assert states.shape == (len(tokens), 16)
    total.backward()
    found = prompt.grad
    alone = vectors_of(model).clone().requires_grad_(True)
    texts = zip(written("bert", alone, TEXTS), TEXTS, strict=True)
    sum(cross_entropy(each.logits[0, LENGTH:], text, reduction="sum") for each, text in texts).backward()
    torch.testing.assert_close(found, alone.grad, rtol=1e-4, atol=1e-5)


def test_a_new_prompt_has_embeddings_of_words_and_each_domain_its_own() -> None:
    model = prompted("electra")  # ELECTRA's embeddings are narrower than its hidden states
    words = torch.tensor([7, 9, 7])
    begin_prompt(model, 0, words)
    assert torch.equal(vectors_of(model), model.get_input_embeddings().weight[words])
    first = losses(model)
    own_parameters(model, 1)
    begin_prompt(model, 1, words + 1)
    choose_set(model, 1)
    assert not torch.allclose(losses(model), first)
    choose_set(model, 0)
    assert torch.equal(losses(model), first)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        shaken(copied, 3)
        assert torch.equal(losses(model), first)
        assert not torch.allclose(losses(copied), first)


def test_a_cache_of_earlier_tokens_is_refused() -> None:
    model = shaken(prompted("gpt2"))
    with pytest.raises(ModelError, match="cannot go on from states of an earlier call"):
        model.generate(TEXTS[0][None], max_new_tokens=2, do_sample=False)
    found = model.generate(TEXTS[0][None], max_new_tokens=2, do_sample=False, use_cache=False)[0]
    for length in (7, 8):
        (behind,) = written("gpt2", vectors_of(model), [found[:length]])
        assert found[length] == behind.logits[0, -1].argmax()


def test_a_model_with_prompts_accepts_fewer_tokens(bert: Path, tmp_path: Path) -> None:
    model: Any = load_model(bert)
    attach_prompts(model, 1, LENGTH)
    shaken(model)
    tokenizer = load_tokenizer(bert)
    save_model(
        bert,
        model.state_dict(),
        tokenizer,
        tmp_path / "out",
        resize=lambda config: with_addition(config, "prompts", sets=1, length=LENGTH),
    )
    before = max_sequence_length(bert)
    assert before
    longest = before - LENGTH
    assert max_sequence_length(tmp_path / "out") == longest
    text = torch.full((longest,), 31)
    loaded = load_model(tmp_path / "out")
    torch.testing.assert_close(loaded(text[None]).logits, model(text[None]).logits)
    base = load_base(tmp_path / "out")
    found = text_features(base, [text.numpy()], torch.device("cpu"), longest, 1)
    expected = model.base_model(text[None]).last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.from_numpy(found[0]), expected.detach(), rtol=1e-4, atol=1e-5)
