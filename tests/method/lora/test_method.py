"""Tests LoRA: outputs start unchanged, only the adapters train, and the merged model computes the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapt.config import Config, TrainingConfig
from adapt.method.base import Setting
from adapt.method.lora.method import Lora, LoraOptions
from adapt.support.errors import ConfigError, ModelError
from tests.model.families import FAMILIES, VOCABULARY, ready

KINDS = [
    *((family, kind) for family in FAMILIES for kind in ("lora", "dora")),
    *((family, kind) for family in ("bert", "gpt2", "llama") for kind in ("pissa", "mica")),
    *((family, kind) for family in ("bert", "llama") for kind in ("olora", "osf")),
]


def prepared(family: str, kind: Any = "lora", **setting: Any) -> tuple[Lora, Any]:
    method = Lora(LoraOptions(rank=3, scale=1.5, kind=kind))
    return method, method.prepare_model(ready(family), Setting(**setting)).eval()


def logits(model: Any) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    found: torch.Tensor = model(input_ids=torch.randint(5, VOCABULARY, (1, 9), generator=draw)).logits
    return found.detach()


def logits_sum(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.arange(5, 14)[None]).logits.square().sum()
    return found


def shaken(model: Any) -> Any:
    """Adds random noise to all trainable parameters, to imitate training."""
    draw = torch.Generator().manual_seed(1)
    for each in model.parameters():
        if each.requires_grad:
            each.data = each.data + torch.randn(each.shape, generator=draw) / 4
    return model


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_the_merged_model_computes_the_same(family: str, kind: str) -> None:
    method, model = prepared(family, kind)
    torch.testing.assert_close(logits(model), logits(ready(family)), rtol=1e-4, atol=1e-4)
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


@pytest.mark.parametrize("kind", ["pissa", "mica", "osf"])
def test_kinds_start_from_their_singular_directions(kind: str) -> None:
    """Compares with numpy: PiSSA starts from the largest singular directions, MiCA and OSF from the smallest."""
    weight = ready("bert").bert.encoder.layer[0].attention.self.query.weight.detach().double().numpy()
    left, sizes, right = np.linalg.svd(weight)
    _, model = prepared("bert", kind)
    layer = model.bert.encoder.layer[0].attention.self.query
    if kind == "osf":
        made = {name: each.detach().double().numpy() for name, each in layer.osf_svd_params["default"].items()}
        found = (made["U_low"] * made["S_low"]) @ made["V_low"]
        expected = (left[:, -3:] * sizes[-3:]) @ right[-3:]
    else:
        up, down = (each["default"].weight.detach().double().numpy() for each in (layer.lora_B, layer.lora_A))
        largest = (left[:, :3] * sizes[:3]) @ right[:3]
        found, expected = (1.5 * up @ down, largest) if kind == "pissa" else (up @ up.T, left[:, -3:] @ left[:, -3:].T)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_mica_and_osf_do_not_change_the_large_directions() -> None:
    """Checks that a gradient step changes a weight only along its three smallest left singular directions."""
    for kind in ("mica", "osf"):
        method, model = prepared("bert", kind)
        name = "bert.encoder.layer.0.attention.self.query.weight"
        before = ready("bert").state_dict()[name].double()
        logits_sum(model).backward()
        for each in model.parameters():
            if each.grad is not None:
                each.data -= each.grad
        change = method.merge(dict(model.state_dict()))[name].double() - before
        large = torch.linalg.svd(before)[0][:, :-3]
        assert change.abs().max() > 1e-4
        assert (large.T @ change).abs().max() < 1e-4 * change.abs().max() + 1e-6


@pytest.mark.parametrize("kind", ["olora", "osf"])
def test_kinds_without_support_for_transposed_weights_refuse_them(kind: str) -> None:
    with pytest.raises(ModelError, match="does not support gpt2 models"):
        prepared("gpt2", kind)


def test_a_rank_above_the_number_of_directions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora\.rank is 256, but lora\.kind pissa") as caught:
        Lora(LoraOptions(kind="pissa")).prepare_model(ready("bert"), Setting())
    assert "16 or less" in caught.value.fix


def test_kinds_that_read_whole_weights_do_not_run_at_zero_stage_3() -> None:
    stages = {kind: Lora(LoraOptions(kind=kind)).zero_stages for kind in ("lora", "mica", "dora", "osf")}  # type: ignore[arg-type]
    assert stages == {"lora": (0, 1, 2, 3), "mica": (0, 1, 2, 3), "dora": (0, 1, 2), "osf": (0, 1, 2)}


def test_the_key_of_plain_lora_has_no_variant() -> None:
    assert Lora(LoraOptions()).what()["kind"] == Lora(LoraOptions(kind="dora")).what()["kind"] == "lora"
    assert "variant" not in Lora(LoraOptions()).what()
    assert Lora(LoraOptions(kind="dora")).what()["variant"] == "dora"


def test_initial_additions_depend_on_seed_and_domain() -> None:
    """Checks that seed and domain number fix the initial adapters, so that all ranks and resumed runs agree."""
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


def test_freezing_all_layers_is_refused(tiny_bert: Path) -> None:
    def check(*freeze: str) -> None:
        Lora(LoraOptions()).check(Config(training=TrainingConfig(freeze=list(freeze))), tiny_bert)

    check("embeddings", "layers:1")
    with pytest.raises(ConfigError, match=r"training\.freeze has layers:2, which freezes all layers"):
        check("layers:2")


def test_models_with_unknown_layers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "ernie"}')
    with pytest.raises(ModelError, match="the layer names of ernie models are not known"):
        Lora(LoraOptions()).check(Config(), tmp_path)
