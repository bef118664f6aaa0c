"""Tests that causal attention in an encoder gives the same results as an unmodified model with a dense causal mask."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from adapt.config import Config, ObjectiveConfig
from adapt.method.base import Method
from adapt.model.load import check_loads, load_model
from adapt.model.locate import Pretrained
from adapt.model.packing.isolation import keep_documents_apart, see_only_earlier
from adapt.objective.masking import make
from adapt.support.errors import ModelError
from adapt.train.training_run import TrainingRun
from adapt.train.worker import method_setting
from tests.model.families import plain
from tests.objective.test_objective import DOCUMENTS, batch

ENCODERS = ["bert", "roberta", "distilbert", "electra", "modernbert"]
PIECES = [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[3][:1], DOCUMENTS[3][1:]]
"""The pieces into which the rows of `batch` divide the documents."""
WINDOW = 3
"""Window of the small ModernBERT's local attention [tokens]: the visible tokens on one side, plus the token itself."""


def dense_masks(model: PreTrainedModel, length: int) -> Any:
    """Returns a document's causal mask [1, 1, length, length] for `transformers`, with True for visible tokens."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    if model.config.model_type != "modernbert":
        return causal
    return {"full_attention": causal, "sliding_attention": causal & causal.new_ones(length, length).triu(1 - WINDOW)}


@pytest.mark.parametrize("family", ENCODERS)
def test_losses_and_gradients_equal_those_with_a_dense_causal_mask(family: str) -> None:
    reference = plain(family)
    packed = copy.deepcopy(reference)
    keep_documents_apart(packed)
    objective = make(ObjectiveConfig(kind="causal_detour"), None, 0)  # type: ignore[arg-type]
    objective.prepare(packed)
    expected = []
    for piece in PIECES:
        ids = torch.tensor([piece])
        logits = reference(input_ids=ids, attention_mask=dense_masks(reference, len(piece))).logits[0, :-1]
        expected.append(cross_entropy(logits, ids[0, 1:], reduction="none"))
    corrupted = objective.corrupt(batch())
    torch.testing.assert_close(objective.losses(packed, corrupted), torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)
    torch.cat(expected).sum().backward()
    objective.loss(packed, corrupted).backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in packed.named_parameters():
        if theirs[name].grad is not None and not name.endswith(("key.bias", "k_lin.bias")):
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-4)


def test_local_attention_still_ends_at_its_window() -> None:
    """Without the window of local attention, a token would see further back, so the losses would differ."""
    model = plain("modernbert")
    ids = torch.tensor([DOCUMENTS[3]])
    window = model(input_ids=ids, attention_mask=dense_masks(model, len(DOCUMENTS[3]))).logits
    everything = dense_masks(model, len(DOCUMENTS[3]))["full_attention"]
    mask = {"full_attention": everything, "sliding_attention": everything}
    assert not torch.allclose(window, model(input_ids=ids, attention_mask=mask).logits, atol=1e-3)


def test_a_model_whose_tokens_see_later_ones_is_refused() -> None:
    model = plain("bert")
    keep_documents_apart(model)
    for module in model.modules():
        if hasattr(module, "is_causal"):
            del module.is_causal
    with pytest.raises(ModelError, match="BertForMaskedLM cannot be made causal: its outputs depend on later tokens"):
        see_only_earlier(model)


def test_a_plan_refuses_an_architecture_that_cannot_be_made_causal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imitates an architecture whose attention ignores the attribute `is_causal`."""
    plain("bert").save_pretrained(tmp_path)
    check_loads(tmp_path, causal=False, only_earlier=True)
    monkeypatch.setattr("adapt.model.packing.attention.bool", lambda value: False, raising=False)
    with pytest.raises(ModelError, match="cannot be made causal"):
        check_loads(tmp_path, causal=False, only_earlier=True)


def test_a_rank_trains_causally_and_saved_weights_see_both_sides_again(tmp_path: Path) -> None:
    """Other models that a method loads, such as a teacher, must see the same tokens as the trained model."""
    plain("bert").save_pretrained(tmp_path)
    config = Config(objective=ObjectiveConfig(kind="causal_detour"))
    job = TrainingRun(config, "ab" * 32, str(tmp_path), (), None, Pretrained(tmp_path, tmp_path, False), 8)
    setting = method_setting(job, Method(), torch.device("cpu"), 1, "fp32")
    assert setting.load
    trained = setting.load(tmp_path)
    switched = [module.is_causal for module in trained.modules() if hasattr(module, "is_causal")]
    assert switched
    assert all(switched)
    trained.save_pretrained(tmp_path / "after")
    again = load_model(tmp_path / "after")
    assert not any(getattr(module, "is_causal", False) for module in again.modules())
