"""Tests soft prompts and prefixes against models that see the same vectors as text."""

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface

from adapt.model.additions.domain_modules import choose_set, own_parameters, sets_of
from adapt.model.additions.prompts import attach_prefixes, attach_prompts, begin_prefixes, begin_prompt
from adapt.model.additions.table import with_addition
from adapt.model.architecture import max_sequence_length
from adapt.model.load import load_base, load_model, save_model
from adapt.model.packing import attention
from adapt.model.packing.packed import Packed
from adapt.model.sparse_prediction import loss_and_states
from adapt.model.states import hidden_states, last_hidden_state, text_features
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from tests.model.additions.test_layer_modules import TEXTS, losses, shaken
from tests.model.families import FAMILIES, documents, packed, plain, ready

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
    """Compares a model that has a prompt with a plain model that gets the prompt's vectors as input.

    Compares losses and the states of all layers, for packed documents of different lengths and for separate rows.
    """
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
    with pytest.raises(ModelError, match="cannot continue from the past_key_values of an earlier call"):
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


def prefixed(family: str, sets: int = 1) -> Any:
    model = ready(family)
    attach_prefixes(model, sets, LENGTH)
    return model


def attention_with_prefix(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> Any:
    """Computes attention for one document: a softmax over the module's prefix in `FOUND` and the visible tokens."""
    prefix, length = FOUND[id(module)], query.shape[2]
    before = [each.detach().transpose(0, 1)[None] for each in (prefix.keys, prefix.values)]
    keys, values = (torch.cat((first, rest), 2) for first, rest in zip(before, (key, value), strict=True))
    keys, values = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (keys, values))
    scores = query @ keys.mT * (options.get("scaling") or query.shape[-1] ** -0.5)
    places = torch.arange(length)[:, None] - torch.arange(-LENGTH, length)
    if getattr(module, "is_causal", False):
        scores = scores.masked_fill(places < 0, -torch.inf)
    if (window := options.get("sliding_window")) is not None:
        scores = scores.masked_fill(places.abs() >= window, -torch.inf)
    return (scores.softmax(-1) @ values).transpose(1, 2), None


FOUND: dict[int, Any] = {}
"""Prefix of each attention module of the plain model, keyed by the module's id."""
AttentionInterface.register("written", attention_with_prefix)


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3"])
def test_every_token_attends_to_the_prefix(family: str) -> None:
    """Checks that packed documents and single rows give the results of explicit attention on separate documents."""
    model, other = shaken(prefixed(family)), plain(family)
    other.set_attn_implementation("written")
    modules = dict(other.named_modules())
    FOUND.clear()
    for name, sets in model.named_modules():
        if name.endswith(".prefixes"):
            FOUND[id(modules[name.removesuffix(".prefixes")])] = sets[0]
    assert len(FOUND) == 2
    expected = [other(text[None]).logits[0] for text in TEXTS]
    for text, logits in zip(TEXTS, expected, strict=True):
        torch.testing.assert_close(model(text[None]).logits[0], logits, rtol=1e-4, atol=1e-5)
    by_token = [
        nn.functional.cross_entropy(logits, text, reduction="none")
        for logits, text in zip(expected, TEXTS, strict=True)
    ]
    torch.testing.assert_close(losses(model), torch.cat(by_token).detach(), rtol=1e-4, atol=1e-5)
    choose_set(model, None)
    assert torch.equal(losses(model), losses(ready(family)))


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "llama"])
def test_padding_does_not_change_the_logits_of_rows(family: str) -> None:
    model, short = shaken(prefixed(family)), TEXTS[1]
    rows = torch.stack([TEXTS[0], torch.cat((short, torch.ones(3, dtype=torch.int64)))])
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    found = model(input_ids=rows, attention_mask=mask).logits
    for row, text in zip(found, TEXTS, strict=True):
        torch.testing.assert_close(row[: len(text)], model(text[None]).logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_generated_text_is_the_same_with_and_without_a_cache(family: str) -> None:
    model = shaken(prefixed(family))
    with_cache, without = (
        model.generate(TEXTS[0][None], max_new_tokens=4, do_sample=False, use_cache=use) for use in (True, False)
    )
    assert torch.equal(with_cache, without)
    scores = model(without).logits
    assert torch.equal(scores[0, 6:-1].argmax(-1), without[0, 7:])
    choose_set(model, None)
    assert not torch.allclose(model(without).logits, scores, atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_prefix_has_the_keys_and_values_of_its_words(family: str) -> None:
    """Checks that a new prefix has the keys and values of its words at the positions that the method gives them.

    In models with rotary positions, the words are before the text. In other models, the words are in the middle of the
    table of positions.
    """
    model: Any = prefixed(family)
    words = torch.tensor([7, 30, 9])
    begin_prefixes(model, 0, words)
    seen: dict[str, Tensor] = {}
    other: Any = ready(family)
    names = {id(each): name for name, each in other.named_modules()}

    def watched(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        seen[names[id(module)]] = torch.stack((key[0], value[0])).transpose(1, 2)
        return attention.attention(module, query, key, value, *rest, **options)

    AttentionInterface.register("watched", watched)
    other.config._attn_implementation = "watched"
    middle = {"modernbert": -64, "llama": -64, "roberta": 255}.get(family, 256 if family != "gpt2" else 512)
    moved = Packed.single(words)
    last_hidden_state(other, replace(moved, position_ids=moved.position_ids + middle))
    for name, sets in model.named_modules():
        if name.endswith(".prefixes"):
            expected = seen[name.removesuffix(".prefixes")]
            torch.testing.assert_close(torch.stack((sets[0].keys, sets[0].values)), expected)
            assert len(sets) == 1
            assert sets.chosen == 0


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_new_prefix_has_the_effect_of_its_words_before_the_text(family: str) -> None:
    """Compares a prefix with the same 64 words before the text, in causal models with rotary positions.

    64 is the length of one piece of a prefix.
    """
    model: Any = ready(family)
    attach_prefixes(model, 1, 64)
    (words,) = documents(64)
    begin_prefixes(model, 0, words)
    whole = plain(family)(torch.cat((words, TEXTS[0]))[None]).logits[0, 64:]
    torch.testing.assert_close(model(TEXTS[0][None]).logits[0], whole, rtol=1e-3, atol=1e-4)


def test_each_domain_and_each_copy_has_its_own_prefix() -> None:
    model = shaken(prefixed("bert"))
    first = losses(model)
    assert len(own_parameters(model, 1)) == 2 * 2
    begin_prefixes(model, 1, torch.tensor([7, 30, 9]))
    choose_set(model, 1)
    assert not torch.allclose(losses(model), first)
    choose_set(model, 0)
    assert torch.equal(losses(model), first)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        shaken(copied, 3)
        assert torch.equal(losses(model), first)
        assert not torch.allclose(losses(copied), first)


def test_gradients_are_the_sum_of_those_of_separate_documents() -> None:
    model = shaken(prefixed("llama"))
    prefix = own_parameters(model, 0)

    def gradients(*texts: Tensor) -> list[Tensor]:
        for each in prefix:
            each.grad = None
        last_hidden_state(model, packed(list(texts), sum(map(len, texts)))).square().sum().backward()
        return [each.grad.clone() for each in prefix if each.grad is not None]

    texts = documents(5, 3, 5)
    alone = [gradients(text) for text in texts]
    for found, each in zip(gradients(*texts), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(found, sum(each), rtol=1e-4, atol=1e-4)


def test_prefixes_are_saved_and_loaded_with_their_model(bert: Path, tmp_path: Path) -> None:
    model: Any = load_model(bert)
    attach_prefixes(model, 1, LENGTH)
    shaken(model)

    def enter(config: Any) -> None:
        with_addition(config, "prefixes", sets=1, length=LENGTH)

    save_model(bert, model.state_dict(), load_tokenizer(bert), tmp_path / "out", resize=enter)
    ids = torch.tensor([[2, 31, 32, 4, 3]])
    loaded = load_model(tmp_path / "out")
    assert not torch.allclose(loaded(ids).logits, load_model(bert)(ids).logits, atol=1e-3)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    base = load_base(tmp_path / "out")
    torch.testing.assert_close(base(ids).last_hidden_state, model.base_model(ids).last_hidden_state)
    assert [len(sets) for sets in sets_of(base)] == [1] * len(sets_of(model))
