"""Tests freezing: frozen parameters do not move, others do, and the memory estimate is lower."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, MethodConfig
from adapt.method.base import AddedMemory, Method, Setting
from adapt.method.freeze import Freeze, FreezeOptions
from adapt.support.errors import ConfigError, ModelError
from adapt.train.capacity.memory import Demand, estimate
from tests.method.trained import FIRST_NEW, Trained, begun, train_all
from tests.train.capacity.test_memory import ROBERTA
from tests.train.toy import VOCABULARY, Case, model


@pytest.mark.parametrize("stage", [0, 3])
def test_frozen_parameters_do_not_change(ranks: Any, stage: int) -> None:
    """Checks that frozen parameters stay and others move. A head tied to frozen embeddings stays, its bias does not."""
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
    with pytest.raises(ModelError, match="and BertForMaskedLM has none"):
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
