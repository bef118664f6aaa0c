"""LoRA: it begins as the model, trains additions alone, and what is merged computes the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config
from adapt.errors import ModelError
from adapt.method.base import Setting
from adapt.method.lora import Lora, LoraOptions
from tests.model.families import FAMILIES, VOCABULARY, ready


def prepared(family: str, **setting: Any) -> tuple[Lora, Any]:
    method = Lora(LoraOptions(rank=3, scale=1.5))
    return method, method.prepare_model(ready(family), Setting(**setting)).eval()


def logits(model: Any) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    found: torch.Tensor = model(input_ids=torch.randint(5, VOCABULARY, (1, 9), generator=draw)).logits
    return found.detach()


def shaken(model: Any) -> Any:
    """As if it had been trained: B begins at 0."""
    draw = torch.Generator().manual_seed(1)
    for name, each in model.named_parameters():
        if "lora_B" in name:
            each.data = torch.randn(each.shape, generator=draw) / 4
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_it_computes_the_same(family: str) -> None:
    method, model = prepared(family)
    torch.testing.assert_close(logits(model), logits(ready(family)))
    after = logits(shaken(model))
    assert not torch.allclose(after, logits(ready(family)), atol=1e-2)
    plain = ready(family)
    plain.load_state_dict(method.merge(dict(model.state_dict())), strict=True)
    torch.testing.assert_close(logits(plain), after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_of_the_transformer_has_an_addition_and_nothing_else_trains(family: str) -> None:
    _, model = prepared(family)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert all("lora_" in name for name in trained)
    parts = {name.split(".lora_")[0] for name in trained}
    fused, gated = family in ("modernbert", "gpt2"), family == "llama"
    assert len(parts) == 2 * (4 if fused else 7 if gated else 6)


def test_the_first_additions_follow_from_the_seed_and_the_domain() -> None:
    """So ranks agree, and a run that resumes begins alike."""
    (_, one), (_, same), (_, other), (_, later) = (
        prepared("bert", **setting) for setting in ({}, {}, {"seed": 1}, {"number": 2})
    )
    first, again, elsewhere, after = (
        torch.cat([each.flatten() for name, each in model.named_parameters() if "lora_A" in name])
        for model in (one, same, other, later)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, elsewhere)
    assert not torch.equal(first, after)


def test_models_whose_layers_are_not_known_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "ernie"}')
    with pytest.raises(ModelError, match="the units of ernie models are not known"):
        Lora(LoraOptions()).check(Config(), tmp_path)
