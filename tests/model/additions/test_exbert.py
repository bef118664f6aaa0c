"""Tests the outputs of exBERT's module, and that packed documents stay isolated from each other."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertForMaskedLM

from adapt.model.additions.exbert import EXBERT, attach_exbert, draw_exbert, trained_parts
from adapt.model.additions.table import with_addition
from adapt.model.layers import layers_of
from adapt.model.load import load_base, load_model, save_model
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.packing.packed import Packed
from adapt.model.states import hidden_states, last_hidden_state
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from tests.model.families import VOCABULARY, documents, plain, ready

ENCODERS = "bert", "roberta", "distilbert", "electra", "modernbert"


class Open(nn.Module):
    """A gate that is fully open, so that the outputs come from the original layer only."""

    def forward(self, states: Tensor) -> Tensor:
        return torch.full_like(states[..., :1], torch.inf)


def gated(family: str) -> Any:
    """Returns a model with an exBERT module of one head and 12 inner neurons, whose gates are partly open."""
    model = plain(family)
    attach_exbert(model, 1, 12, VOCABULARY)
    draw_exbert(model, 3)
    keep_documents_apart(model)
    return model


def logits(model: Any, ids: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=documents(9)[0][None] if ids is None else ids).logits
    return found


@pytest.mark.parametrize("family", ENCODERS)
def test_with_open_gates_outputs_are_the_base_models_bit_for_bit(family: str) -> None:
    model, base = gated(family), ready(family)
    assert not torch.allclose(logits(model), logits(base), atol=1e-2)
    for layer in layers_of(model):
        layer.module.gate = Open()
    assert torch.equal(logits(model), logits(base))


@pytest.mark.parametrize("family", ENCODERS)
def test_packed_documents_are_isolated(family: str) -> None:
    model, texts = gated(family), documents(4, 7, 5)
    with torch.no_grad():
        together = last_hidden_state(model, Packed.joined(*map(Packed.single, texts)))
        alone = torch.cat([last_hidden_state(model, Packed.single(text)) for text in texts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_a_layer_with_its_module_counts_once(family: str) -> None:
    """Checks that `hidden_states` returns one entry per original layer plus the embeddings."""
    model, (text,) = gated(family), documents(6)
    states = hidden_states(model, Packed.single(text))
    assert len(states) == 1 + model.config.num_hidden_layers
    torch.testing.assert_close(states[-1], last_hidden_state(model, Packed.single(text)))


def test_a_layer_computes_the_equation() -> None:
    """Compares a layer's states with exBERT's equation, computed from the weights by `bert_layer`."""
    model = gated("bert")
    states = torch.randn(1, 7, 16, generator=torch.Generator().manual_seed(5))
    first = layers_of(model)[0].module
    weights = {name: value.detach() for name, value in first.state_dict().items()}
    assert weights["extension.attention.self.query.weight"].shape == (8, 16)
    assert weights["extension.intermediate.dense.weight"].shape == (12, 16)
    share = 1 / (1 + torch.exp(-(states @ weights["gate.weight"].T)))
    expected = share * bert_layer(weights, "", 2, states) + (1 - share) * bert_layer(weights, "extension.", 1, states)
    with torch.no_grad():
        found = first(states)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def bert_layer(weights: dict[str, Tensor], prefix: str, heads: int, states: Tensor) -> Tensor:
    """Computes a layer of BERT (arXiv 1810.04805) for one text."""

    def linear(name: str, given: Tensor) -> Tensor:
        return given @ weights[f"{prefix}{name}.weight"].T + weights[f"{prefix}{name}.bias"]

    def norm(name: str, given: Tensor) -> Tensor:
        centred = given - given.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * weights[f"{prefix}{name}.weight"] + weights[f"{prefix}{name}.bias"]

    parts = [linear(f"attention.self.{name}", states)[0].chunk(heads, -1) for name in ("query", "key", "value")]
    attended = [
        ((query @ key.T) / query.shape[-1] ** 0.5).softmax(-1) @ value for query, key, value in zip(*parts, strict=True)
    ]
    middle = norm(
        "attention.output.LayerNorm", states + linear("attention.output.dense", torch.cat(attended, -1)[None])
    )
    inner = functional.gelu(linear("intermediate.dense", middle))
    return norm("output.LayerNorm", middle + linear("output.dense", inner))


def test_weights_depend_on_the_seed_and_have_the_architectures_scale() -> None:
    first, again = gated("bert"), gated("bert")
    assert all(torch.equal(*pair) for pair in zip(trained_parts(first), trained_parts(again), strict=True))
    draw_exbert(again, 4)
    extension = layers_of(again)[0].module.extension
    assert not torch.equal(extension.output.dense.weight, layers_of(first)[0].module.extension.output.dense.weight)
    assert 0.1 < float(extension.intermediate.dense.weight.std()) < 0.3  # initializer_range is 0.2
    assert torch.equal(extension.output.LayerNorm.weight, torch.ones(16))
    assert not extension.output.dense.bias.any()


@pytest.mark.parametrize("family", ENCODERS)
def test_weights_are_initialized_as_by_transformers(family: str) -> None:
    model, other = plain(family), plain(family)
    for each in (model, other):
        attach_exbert(each, 1, 12, VOCABULARY)
    draw_exbert(model, 3)
    torch.manual_seed(3)
    for layer in layers_of(other):
        for name in ("extension", "gate"):
            for parameter in layer.part(name).parameters():
                vars(parameter).pop("_is_hf_initialized", None)
            layer.part(name).apply(other._init_weights)
    assert all(torch.equal(*pair) for pair in zip(trained_parts(model), trained_parts(other), strict=True))


def test_the_module_is_saved_and_loaded_with_its_model(tiny_bert: Path, tmp_path: Path) -> None:
    model = load_model(tiny_bert)
    options = {"heads": 1, "inner": 5, "first_new": 20}
    attach_exbert(model, **options)
    draw_exbert(model, 0)
    save_model(
        tiny_bert,
        model.state_dict(),
        load_tokenizer(tiny_bert),
        tmp_path,
        resize=lambda config: with_addition(config, EXBERT, **options),
    )
    loaded = load_model(tmp_path)
    assert torch.equal(logits(loaded), logits(pickle.loads(pickle.dumps(model))))
    assert not torch.allclose(logits(loaded), logits(load_model(tiny_bert)), atol=1e-4)
    found, text = load_base(tmp_path), Packed.single(documents(6)[0])
    torch.testing.assert_close(last_hidden_state(found, text), last_hidden_state(loaded, text))
    assert isinstance(loaded, BertForMaskedLM)


def test_checkpointing_does_not_change_gradients() -> None:
    def gradients(model: Any) -> list[Tensor]:
        model.train()
        model(input_ids=documents(9)[0][None]).logits.square().mean().backward()
        return [part.grad for part in trained_parts(model)]

    settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    made = []
    for _ in range(2):
        model = plain("bert", **settings)
        attach_exbert(model, 1, 12, VOCABULARY)
        draw_exbert(model, 3)
        made.append(model)
    expected = gradients(made[0])
    assert all(gradient.abs().sum() > 0 for gradient in expected[-3:])
    made[1].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for found, wanted in zip(gradients(made[1]), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_decoders_are_refused() -> None:
    with pytest.raises(ModelError, match="works only with encoders, but GPT2LMHeadModel is a decoder"):
        attach_exbert(plain("gpt2"), 1, 12, VOCABULARY)
