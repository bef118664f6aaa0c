"""Tests which parameters are trained and which learning rate each one has, chosen by the parameters' names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MPNetConfig,
    MPNetForMaskedLM,
    PhiConfig,
    PhiForCausalLM,
)

from adapt.config import TrainingConfig
from adapt.model.load import load_model
from adapt.model.size import model_size
from adapt.model.trainable import check_trained, frozen_names, frozen_summary, rate_factors, trained_share
from adapt.support.errors import ConfigError, ModelError
from tests.model.checkpoints import copy_with_old_names, copy_without_head
from tests.model.families import BERT, DEBERTA, FAMILIES, plain

NAMES = [
    "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.LayerNorm.weight",
    *(f"bert.encoder.layer.{n}.{part}" for n in range(3) for part in ("attention.self.query.weight", "output.bias")),
    "cls.predictions.bias",
]


@pytest.mark.parametrize(
    ("freeze", "expected"),
    [
        ([], []),
        (["embeddings"], NAMES[:2]),
        (["layers:1"], NAMES[3:5]),
        (["layers:0"], []),
        (["*.attention.*"], [NAMES[3], NAMES[5], NAMES[7]]),
        (["embeddings", "layers:2"], [*NAMES[:2], *NAMES[3:7]]),
    ],
)
def test_entries_select_parameters(freeze: list[str], expected: list[str]) -> None:
    assert frozen_names(NAMES, "bert", freeze) == set(expected)


@pytest.mark.parametrize(
    ("entry", "what", "fix"),
    [
        ("layers:4", "has layers:4, but the model has 3 layers", "layers:3 at most"),
        ("*.attn.*", "'*.attn.*', which matches no parameter", "embeddings, layers:N, or a pattern"),
        ("bert.embeddings.word_embedding.weight", "matches no parameter", f"did you mean {NAMES[0]}?"),
        ("embedding", "matches no parameter", "embeddings"),
        ("*", "leaves no parameter to train", "freeze fewer"),
    ],
)
def test_an_entry_that_fits_no_parameter_is_refused(entry: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        frozen_names(NAMES, "bert", [entry])
    assert what in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize("family", FAMILIES)
def test_names_show_the_same_layers_as_a_known_pattern(family: str) -> None:
    names = [name for name, _ in plain(family).named_parameters()]
    for count in (0, 1, 2):
        assert frozen_names(names, "mystery", [f"layers:{count}"]) == frozen_names(names, family, [f"layers:{count}"])


@pytest.mark.parametrize(
    ("kind", "config", "layers"),
    [
        (DebertaV2ForMaskedLM, DebertaV2Config(**BERT, **DEBERTA), "encoder.layer"),
        (MPNetForMaskedLM, MPNetConfig(**BERT), "encoder.layer"),
        (GemmaForCausalLM, GemmaConfig(**BERT, num_key_value_heads=1, head_dim=8), "layers"),
        (PhiForCausalLM, PhiConfig(**BERT), "layers"),
    ],
)
def test_layers_of_other_architectures_are_found(kind: Any, config: Any, layers: str, tmp_path: Path) -> None:
    config.vocab_size = 50
    model = kind(config)
    names = [name for name, _ in model.named_parameters()]
    lowest = {name for name in names if f"{layers}.0." in name}
    training = TrainingConfig(freeze=["layers:1"], layer_decay=0.5)
    for part in (model, model.base_model):  # a folder without the head has names without a prefix
        part.save_pretrained(tmp_path)
        check_trained(training, tmp_path)
        assert frozen_summary(training, tmp_path).startswith(f"{len(lowest)} of ")
    assert frozen_names(names, config.model_type, ["layers:1"]) == lowest
    factors = rate_factors(names, config.model_type, training)
    assert {factors[name] for name in lowest} == {0.5}
    assert {factors[name] for name in names if f"{layers}.1." in name} == {1.0}
    assert factors[names[0]] == 0.25  # the token embeddings
    with pytest.raises(ConfigError, match="has layers:3, but the model has 2 layers"):
        check_trained(TrainingConfig(freeze=["layers:3"]), tmp_path)


@pytest.mark.parametrize(
    ("names", "kind", "said"),
    [
        (["a.layers.0.w", "b.layers.0.w", "head.w"], "mystery", "contain several lists of modules: a.layers, b.layers"),
        (["embeddings.w", "head.w"], "mystery", "contain no list of modules"),
        (["albert.encoder.albert_layer_groups.0.w", "head.w"], "albert", "layers of albert models share their weights"),
    ],
)
def test_layers_that_cannot_be_found_are_refused_and_patterns_are_not(names: list[str], kind: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        frozen_names(names, kind, ["layers:1"])
    assert "training.layer_decay" in caught.value.fix
    assert "method.kind" not in caught.value.fix
    assert frozen_names(names, kind, ["head.*"]) == {"head.w"}


def test_learning_rates_decrease_with_each_lower_layer() -> None:
    factors = rate_factors(NAMES, "bert", TrainingConfig(embedding_rate=2.0, layer_decay=0.5))
    assert [factors[NAMES[3 + 2 * layer]] for layer in range(3)] == [0.25, 0.5, 1.0]
    assert factors[NAMES[0]] == factors[NAMES[1]] == 2 * 0.5**3
    assert factors["bert.embeddings.LayerNorm.weight"] == factors["cls.predictions.bias"] == 1


def test_names_in_headers_give_the_same_result_as_a_loaded_model(tiny_bert: Path) -> None:
    training = TrainingConfig(freeze=["embeddings", "layers:1"])
    check_trained(training, tiny_bert)
    named = dict(load_model(tiny_bert).named_parameters())
    frozen = frozen_names(named, "bert", training.freeze)
    share = 1 - sum(named[name].numel() for name in frozen) / sum(value.numel() for value in named.values())
    size = model_size(tiny_bert)
    assert size
    assert trained_share(training, size) == pytest.approx(share, abs=0.02)
    assert frozen_summary(training, tiny_bert).startswith(f"{len(frozen)} of ")
    assert "embeddings, layers:1" in frozen_summary(training, tiny_bert)


def test_old_names_in_headers_fit_the_patterns_that_the_loaded_model_fits(tiny_bert: Path, tmp_path: Path) -> None:
    old, training = copy_with_old_names(tiny_bert, tmp_path / "old"), TrainingConfig(freeze=["*.LayerNorm.weight"])
    check_trained(training, old)
    assert frozen_summary(training, old) == frozen_summary(training, tiny_bert)
    size = model_size(old)
    assert size
    assert size == model_size(tiny_bert)
    assert trained_share(training, size) < 1


def test_checkpoints_without_the_base_models_prefix_fit_the_same_patterns(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=16))
    model.transformer.save_pretrained(tmp_path)  # names begin with "h.0", as in GPT-2 on the Hub
    check_trained(TrainingConfig(freeze=["transformer.h.0.*"]), tmp_path)
    check_trained(TrainingConfig(freeze=["*.attn.*", "embeddings", "layers:1"]), tmp_path)
    with pytest.raises(ConfigError, match="matches no parameter"):
        check_trained(TrainingConfig(freeze=["transformer.h.7.*"]), tmp_path)
    whole, training = tmp_path / "whole", TrainingConfig(freeze=["*wte*", "transformer.wpe.*"])
    model.save_pretrained(whole)
    assert frozen_summary(training, tmp_path).startswith("2 of 28 tensors are frozen, ")
    assert frozen_summary(training, tmp_path) == frozen_summary(training, whole)


def test_patterns_without_the_base_models_prefix_are_refused_early(tiny_bert: Path, tmp_path: Path) -> None:
    """The loaded model has the prefix, so these patterns would match nothing there."""
    copy_without_head(tiny_bert, tmp_path / "bare")
    check_trained(TrainingConfig(freeze=["bert.embeddings.LayerNorm.*"]), tmp_path / "bare")
    with pytest.raises(ConfigError, match="matches no parameter") as refused:
        check_trained(TrainingConfig(freeze=["embeddings.LayerNorm.weight"]), tmp_path / "bare")
    assert refused.value.fix == "did you mean *.embeddings.LayerNorm.weight?"
    check_trained(TrainingConfig(freeze=["*.embeddings.LayerNorm.weight"]), tmp_path / "bare")


def test_a_rate_of_the_embeddings_that_applies_to_no_weight_is_refused(tmp_path: Path) -> None:
    training = TrainingConfig(embedding_rate=2.0)
    (tmp_path / "config.json").write_text('{"model_type": "mystery"}')
    save_file({"tokens.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"embedding_rate is 2, but no weight of the mystery model has a known name"):
        check_trained(training, tmp_path)
    check_trained(TrainingConfig(), tmp_path)
    save_file({"transformer.tokens_embed.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    check_trained(training, tmp_path)
