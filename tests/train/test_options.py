"""Gradient checkpointing and torch.compile change how a loss is computed, and not the loss."""

import shutil

import pytest
import torch

from adapt.config import TrainingConfig
from adapt.errors import ConfigError, ModelError
from adapt.model.apart import keep_documents_apart
from adapt.objective.causal import CausalLanguageModelling
from adapt.train.compiler import check_compiler
from adapt.train.options import apply_options, layers
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
    """The second forward pass draws the same dropout as the first."""
    loss, expected = gradients(name, TrainingConfig(), dropout)
    again, found = gradients(name, TrainingConfig(gradient_checkpointing=True), dropout)
    assert again == loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_compiling_changes_nothing_but_rounding(name: str) -> None:
    loss, expected = gradients(name, TrainingConfig())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    again, found = gradients(name, TrainingConfig(compile=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # it was compiled
    assert again == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_are_found(name: str) -> None:
    if name == "albert":  # runs one layer again and again, and does not say it is one
        return
    assert len(layers(random_model(name), "training.compile")) == LAYERS


def test_a_model_that_cannot() -> None:
    model = random_model("bert")
    model.supports_gradient_checkpointing = False
    with pytest.raises(ModelError, match=r"training\.gradient_checkpointing does not work with BertForMaskedLM"):
        apply_options(model, TrainingConfig(gradient_checkpointing=True), CPU)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    check_compiler(on_gpu=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="looked for no-such-compiler"):
        check_compiler(on_gpu=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="gcc, clang, cc"):
        check_compiler(on_gpu=True)
