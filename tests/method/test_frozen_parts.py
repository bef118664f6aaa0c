"""Tests which parts of a model are trained by the methods `freeze` and `expand`."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from adapt.config import Config, MethodConfig
from adapt.method.base import AddedMemory, Method, Setting
from adapt.method.elle.growth import Growth, check_growths
from adapt.method.frozen_parts import PRE_NORM, Expand, ExpandOptions, Freeze, FreezeOptions
from adapt.model.layers import layers_of
from adapt.model.packing.isolation import keep_documents_apart
from adapt.support.errors import ConfigError, ModelError
from adapt.train.capacity.memory import Demand, estimate
from tests.method.lora.test_method import logits
from tests.method.trained import FIRST_NEW, Trained, begun, train_all
from tests.model.families import ready
from tests.train.capacity.test_memory import ROBERTA
from tests.train.toy import VOCABULARY, Case, model


@pytest.mark.parametrize("stage", [0, 3])
def test_frozen_parameters_do_not_change(ranks: Any, stage: int) -> None:
    """Checks that only frozen parameters stay unchanged.

    A head tied to frozen embeddings is frozen, but its bias is not.
    """
    runs = [
        Trained(Case(stage), "freeze", {"layers": 1}),
        Trained(Case(stage), "freeze", {"embeddings": False, "layers": 1}),
    ]
    start = model().state_dict()
    for run, (weights, *_) in zip(runs, ranks(2).run(train_all, runs)[0], strict=True):
        for name, weight in weights.items():
            is_table = "word_embeddings" in name or name.endswith("decoder.weight")
            is_frozen = "layer.0." in name or (is_table and "embeddings" not in run.options)
            if weight.is_floating_point() and not name.endswith("key.bias"):
                assert torch.equal(weight, start[name]) == is_frozen, name


@pytest.mark.parametrize("stage", [0, 3])
def test_only_the_module_trains(ranks: Any, stage: int) -> None:
    """Checks that exBERT's module and the embeddings of new tokens train, and that rows of old tokens do not change."""
    run = Trained(Case(stage), "freeze", {"all_but_module": True}, has_module=True)
    start, weights = begun(has_module=True).state_dict(), ranks(2).run(train_all, [run])[0][0].weights
    assert weights.keys() == start.keys()
    for name, weight in weights.items():
        if weight.shape[:1] == (VOCABULARY,):
            assert torch.equal(weight[:FIRST_NEW], start[name][:FIRST_NEW]), name
            assert (weight[FIRST_NEW:] != start[name][FIRST_NEW:]).all(), name
        elif weight.is_floating_point() and not name.endswith("key.bias"):
            is_new = ".extension." in name or ".gate." in name
            assert torch.equal(weight, start[name]) == (not is_new), name


def test_a_model_without_the_module_is_refused() -> None:
    with pytest.raises(ModelError, match="but BertForMaskedLM has no such module"):
        Freeze(FreezeOptions(all_but_module=True)).prepare_model(model(), Setting())


def test_freezing_more_layers_than_the_model_has_is_refused(tiny_bert: Path) -> None:
    config = Config(method=MethodConfig("freeze"))
    with pytest.raises(ConfigError, match=r"freeze.layers is 3, but the model has 2 layers"):
        Freeze(FreezeOptions(layers=3)).check(config, tiny_bert)
    Freeze(FreezeOptions(layers=2)).check(config, tiny_bert)


def test_frozen_parameters_need_no_memory_for_gradients_and_optimizer() -> None:
    method = Freeze(FreezeOptions())
    trained = 1 - ROBERTA.embedding_parameters / ROBERTA.parameters
    assert method.added_memory(ROBERTA) == AddedMemory(trained=trained)
    plain, frozen = (
        estimate(ROBERTA, Demand(1, 64, 1, 0, "none", "fp32", False, 0.15, 64, False, method=each))
        for each in (Method(), method)
    )
    assert frozen.optimizer == pytest.approx(trained * plain.optimizer)
    assert frozen.gradients == pytest.approx(trained * plain.gradients)
    assert frozen.parameters == plain.parameters
    assert Freeze(FreezeOptions(embeddings=False)).added_memory(ROBERTA) == AddedMemory()
    module = (ROBERTA.embedding_parameters + ROBERTA.layer_parameters / 2) / ROBERTA.parameters
    assert Freeze(FreezeOptions(all_but_module=True)).added_memory(ROBERTA) == AddedMemory(trained=module)


def test_only_the_embeddings_are_frozen_by_default() -> None:
    toy = Freeze(FreezeOptions()).prepare_model(model(), Setting())
    assert [name for name, each in toy.named_parameters() if not each.requires_grad] == [
        "bert.embeddings.word_embeddings.weight"
    ]


DECODERS = "gpt2", "llama", "qwen3"
FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 5},
    "llama": {"num_hidden_layers": 5},
    "qwen3": {
        "num_hidden_layers": 5,
        "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING],
        "use_sliding_window": True,
        "sliding_window": 2,
    },
    "modernbert": {"num_hidden_layers": 5, "layer_types": [FULL, SLIDING, FULL, SLIDING, FULL]},
}
"""Options for models with five layers. Families with attention windows have full and sliding layers."""


def deep(family: str) -> Any:
    return ready(family, **LAYERS[family])


def expanded(family: str, every: int = 2) -> tuple[Expand, Any]:
    method = Expand(ExpandOptions(every=every))
    return method, method.prepare_model(deep(family), Setting())


@pytest.mark.parametrize(("every", "layers"), [(1, 10), (2, 8), (5, 6)])
@pytest.mark.parametrize("family", LAYERS)
def test_expansion_does_not_change_the_outputs(family: str, every: int, layers: int) -> None:
    _, model = expanded(family, every)
    assert len(layers_of(model)) == model.config.num_hidden_layers == layers
    assert len(getattr(model.config, "layer_types", None) or range(layers)) == layers
    torch.testing.assert_close(logits(model), logits(deep(family)), rtol=0, atol=0)


@pytest.mark.parametrize("family", LAYERS)
def test_only_new_layers_train(family: str) -> None:
    _, model = expanded(family)
    new = {2, 5, 7}  # indices of the new layers, which are copies of layers 2, 4 and 5
    for number, layer in enumerate(layers_of(model)):
        assert {each.requires_grad for each in layer.module.parameters()} == {number in new}
    layers = {id(each) for layer in layers_of(model) for each in layer.module.parameters()}
    assert not any(each.requires_grad for each in model.parameters() if id(each) not in layers)
    loss = model(input_ids=torch.tensor([[5, 6, 7]])).logits.square().mean()
    loss.backward()
    moved = [name for name, each in model.named_parameters() if each.grad is not None and each.grad.any()]
    assert moved  # the new layers' output projections are 0, but get a gradient


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("family", LAYERS)
def test_the_saved_model_loads_as_an_ordinary_model(family: str, every: int) -> None:
    """Checks that transformers' own class loads the merged weights with the resized config of the original model.

    If every layer is copied, ModernBERT's first layer is too. This layer has no norm before attention, but its copy
    gets a norm.
    """
    method, model = expanded(family, every)
    draw = torch.Generator().manual_seed(2)
    for each in model.parameters():
        if each.requires_grad:
            each.data += 0.1 * torch.randn(each.shape, generator=draw)
    config = copy.deepcopy(deep(family).config)
    method.resize(config)
    kind = AutoModelForCausalLM if family in DECODERS else AutoModelForMaskedLM
    plain = kind.from_config(config).eval()
    plain.load_state_dict(method.merge(dict(model.state_dict())), strict=True)
    keep_documents_apart(plain)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)


def test_models_with_norms_after_sums_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"method\.kind expand cannot add layers to bert models: they norm"):
        Expand(ExpandOptions()).check(Config(), tiny_bert)
    for kind in PRE_NORM:
        (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        Expand(ExpandOptions()).check(Config(), tmp_path)


def test_layers_that_depend_on_their_depth_are_refused(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "scale_attn_by_inverse_layer_idx": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="scale_attn_by_inverse_layer_idx"):
        Expand(ExpandOptions()).check(Config(), tmp_path)
    with pytest.raises(ModelError, match=r"elle\.layers adds layers"):
        check_growths(tmp_path, [Growth(), Growth(layers=1)])
    check_growths(tmp_path, [Growth(heads=2)])


def test_added_passes_and_memory() -> None:
    method = Expand(ExpandOptions(every=4))
    assert method.added_passes().trained == 0.25
    added = method.added_memory(ROBERTA)
    assert added.held == pytest.approx(4 * ROBERTA.layer_parameters / 4)
    assert added.trained == pytest.approx(ROBERTA.layer_parameters / 4 / ROBERTA.parameters)
