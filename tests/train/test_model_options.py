"""Tests that gradient checkpointing and torch.compile do not change the loss, and that layers are found."""

import shutil

import pytest
import torch

from adapt.config import TrainingConfig
from adapt.model.packing.isolation import keep_documents_apart
from adapt.objective.objective import CausalLanguageModelling
from adapt.support.errors import ConfigError, ModelError
from adapt.train.capacity.device import check_compiler
from adapt.train.model_options import apply_options, freeze, layers
from tests.model.architectures import ARCHITECTURES, LAYERS, random_model
from tests.train.capacity.test_flops import rows

CPU = torch.device("cpu")


def gradients(name: str, training: TrainingConfig, dropout: bool = False) -> tuple[float, dict[str, torch.Tensor]]:
    changes = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2} if dropout else {}
    model = random_model(name, **changes)
    keep_documents_apart(model.eval())
    apply_options(model.train(), training, CPU)
    torch.manual_seed(0)
    loss = CausalLanguageModelling().loss(model, rows(10, documents=2))
    loss.backward()
    return loss.item(), {key: parameter.grad for key, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "dropout"), [("bert", False), ("bert", True), ("gpt2", False), ("llama", False), ("distilbert", False)]
)
def test_checkpointing_changes_nothing(name: str, dropout: bool) -> None:
    """Losses and gradients are equal, because the second forward pass draws the same dropout as the first."""
    loss, expected = gradients(name, TrainingConfig(), dropout)
    again, found = gradients(name, TrainingConfig(gradient_checkpointing=True), dropout)
    assert again == loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_frozen_parameters_get_no_gradient() -> None:
    model = random_model("bert")
    freeze(model, TrainingConfig(freeze=["embeddings", "layers:1", "*.output.*"]))
    keep_documents_apart(model.eval())
    CausalLanguageModelling().loss(model.train(), rows(10, documents=2)).backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    named = {name for name in dict(model.named_parameters()) if "_embeddings." in name or ".output." in name}
    assert without == named | {name for name, _ in model.named_parameters() if ".layer.0." in name}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_compiling_changes_nothing_but_rounding(name: str) -> None:
    loss, expected = gradients(name, TrainingConfig())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    again, found = gradients(name, TrainingConfig(compile=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # the model was compiled
    assert again == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_known_architectures_are_found(name: str) -> None:
    if name == "albert":  # ALBERT applies one layer repeatedly, and does not declare it as a layer
        return
    assert len(layers(random_model(name), "training.compile")) == LAYERS


def test_a_model_without_support_is_refused() -> None:
    model = random_model("bert")
    model.supports_gradient_checkpointing = False
    with pytest.raises(ModelError, match=r"training\.gradient_checkpointing does not work with BertForMaskedLM"):
        apply_options(model, TrainingConfig(gradient_checkpointing=True), CPU)


def test_a_missing_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    check_compiler(on_gpu=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="looked for no-such-compiler"):
        check_compiler(on_gpu=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="gcc, clang, cc"):
        check_compiler(on_gpu=True)
