"""Tests that a grown model computes the same as the small model, and that its config.json and estimated size match."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from adapt.method.elle.grown_model import Axis, grown
from adapt.method.elle.growth import Growth, check_growths
from adapt.model.layers import layers_of
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.size import model_size
from adapt.support.errors import ConfigError
from tests.method.lora.test_method import logits
from tests.model.families import FAMILIES, plain, ready

ALL = (*FAMILIES, "qwen3")
DECODERS = "gpt2", "llama", "qwen3"
TWICE = Growth(heads=2)


def untied(family: str) -> Any:
    """Returns a model whose head has its own matrix."""
    model: Any = plain(family, tie_word_embeddings=False)
    keep_documents_apart(model)
    return model


@pytest.mark.parametrize("growth", [TWICE, Growth(layers=1), Growth(layers=2), Growth(2, 2)], ids=str)
@pytest.mark.parametrize("family", ALL)
def test_a_larger_model_computes_the_same(family: str, growth: Growth) -> None:
    """Checks models that grow in width, in depth and in both, with tied and untied heads."""
    model = ready(family)
    larger = grown(model, growth)
    assert larger.config.num_hidden_layers == len(layers_of(larger)) == 2 + growth.layers
    assert larger.config.num_attention_heads == 2 + growth.heads
    assert larger.config.hidden_size == (32 if growth.heads else 16)
    torch.testing.assert_close(logits(larger), logits(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_silent_layers_in_pre_norm_models_are_exactly_the_identity(family: str) -> None:
    torch.testing.assert_close(logits(grown(ready(family), Growth(layers=2))), logits(ready(family)), rtol=0, atol=0)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_an_untied_head_is_divided(family: str) -> None:
    model = untied(family)
    torch.testing.assert_close(logits(grown(model, TWICE)), logits(model), rtol=1e-4, atol=1e-4)


def test_electra_grows_with_states_as_wide_as_its_embeddings() -> None:
    model = ready("electra", embedding_size=16)
    torch.testing.assert_close(logits(grown(model, TWICE)), logits(model), rtol=1e-4, atol=1e-4)


def test_one_more_unit_by_hand() -> None:
    """Checks the growth from two units to three, where the third unit copies the second.

    The second and third unit get the count 2. The weights that read these two units are halved, so together they have
    the effect of the original unit.
    """
    axis = Axis(torch.tensor([0, 1, 1]))
    assert axis.copies.tolist() == [1, 2, 2]
    assert axis.is_new.tolist() == [False, False, True]
    assert axis.blocks(2, stacked=2).sources.tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7]
    sources = Axis.grown(3, 8, torch.Generator().manual_seed(0)).sources
    assert sorted(sources[:3].tolist()) == sorted(sources[3:6].tolist()) == [0, 1, 2]
    assert len(set(sources[6:].tolist())) == 2


def test_noise_makes_copied_units_differ() -> None:
    """Checks that noise changes only the weights that produce copied units."""
    quiet, noisy = (dict(grown(ready("bert"), TWICE, noise=noise).named_parameters()) for noise in (0.0, 0.01))
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    difference = (noisy[name] - quiet[name]).detach()
    assert not difference[:32].any()
    assert difference[32:].std() == pytest.approx(0.01, rel=0.1)
    assert {each for each in quiet if not torch.equal(quiet[each], noisy[each])} == {
        f"bert.encoder.layer.{layer}.{part}.weight"
        for layer in range(2)
        for part in (
            *(f"attention.self.{each}" for each in ("query", "key", "value")),
            *("attention.output.dense", "intermediate.dense", "output.dense"),
        )
    }


@pytest.mark.parametrize("family", ALL)
def test_the_saved_model_is_ordinary_and_has_the_estimated_size(family: str, tmp_path: Path) -> None:
    """Checks a growth in which units get different numbers of copies and the inner width must be rounded.

    transformers' own model must load the weights strictly, and the forecast size must be close to the real size.
    """
    model: Any = ready(family)
    model.save_pretrained(tmp_path / "small")
    growth = Growth(1, 2 if family in ("llama", "qwen3") else 1)
    larger, config = grown(model, growth, noise=0.01), copy.deepcopy(model.config)
    growth.resize(config)
    kind = AutoModelForCausalLM if family in DECODERS else AutoModelForMaskedLM
    ordinary: Any = kind.from_config(config).eval()
    ordinary.load_state_dict(larger.state_dict(), strict=True)
    keep_documents_apart(ordinary)
    torch.testing.assert_close(logits(ordinary), logits(larger))
    larger.save_pretrained(tmp_path / "large")
    size, found = model_size(tmp_path / "small"), model_size(tmp_path / "large")
    assert size
    assert found
    forecast = growth.resized(size)
    for name in ("layers", "heads", "hidden", "attention", "inner", "embedding_parameters"):
        assert getattr(forecast, name) == getattr(found, name), name
    for name in ("parameters", "layer_parameters", "head_parameters"):
        assert getattr(forecast, name) == pytest.approx(getattr(found, name), rel=0.03), name


def test_new_layers_are_spread_evenly() -> None:
    assert Growth(layers=2).layer_sources(6) == [
        *((0, False), (1, False), (2, False), (2, True)),
        *((3, False), (4, False), (5, False), (5, True)),
    ]


@pytest.mark.parametrize(
    ("family", "growths", "words"),
    [
        ("bert", [Growth(layers=3)], r"elle\.layers adds 3 layers to 2 layers before domain 1"),
        ("bert", [Growth(layers=2), Growth(layers=5)], r"adds 5 layers to 4 layers before domain 2"),
        ("llama", [Growth(heads=1)], r"2 heads share a key and a value"),
        ("bert", [Growth(heads=-1)], r"below 0"),
    ],
)
def test_unsupported_growth_is_refused(family: str, growths: list[Growth], words: str, tmp_path: Path) -> None:
    ready(family).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=words):
        check_growths(tmp_path, growths)
    check_growths(tmp_path, [Growth(2, 2), Growth(4, 4)])
