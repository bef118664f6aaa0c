"""Tests the variants of LoRA against their definitions, and the moments of layer inputs that CorDA needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from adapt.config import Config, CorpusConfig, MethodConfig
from adapt.method.base import Domain, Setting
from adapt.method.lora.method import MOMENTS_FILE, Lora, LoraOptions
from adapt.method.lora.variants import (
    DAMPING,
    least_directions,
    second_moments,
    shared_inputs,
)
from adapt.model.locate import Pretrained
from adapt.model.start import Start
from adapt.objective.objective import Batch
from adapt.support.errors import ConfigError, ModelError
from tests.model.families import ready
from tests.runner.toys import Toy, idle
from tests.train import toy

RANK = 3


def moments_of(family: str, folder: Path) -> Path:
    """Writes second moments of random inputs in the file format of the stage that measures moments."""
    draw, model = torch.Generator().manual_seed(5), ready(family)
    found = {}
    for name in dict.fromkeys(shared_inputs(model).values()):
        weight = model.get_submodule(name).weight
        width = weight.shape[0 if family == "gpt2" else 1]
        rows = torch.randn(40, width, generator=draw) * torch.linspace(0.1, 3, width)
        found[name] = rows.T @ rows / len(rows)
    save_file(found, folder / MOMENTS_FILE, {"domains": "1"})
    return folder


def prepared(family: str, folder: Path, **options: Any) -> tuple[Lora, Any]:
    method = Lora(LoraOptions(kind="corda", rank=RANK, scale=1.5, **options))
    return method, method.prepare_model(ready(family), Setting(past={"moments": folder})).eval()


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.arange(5, 14)[None]).logits
    return found.detach()


def test_moments_sum_over_all_inputs_of_each_layer() -> None:
    """Compares the measured moments with moments computed from recorded layer inputs, which contain no padding."""
    model, objective = toy.model().eval(), toy.Objective()
    batches = [(number, Batch.of(toy.columns(number))) for number in range(2)]
    seen: dict[str, list[np.ndarray]] = {name: [] for name in shared_inputs(model)}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _, given, __, name=name: seen[name].append(given[0].detach().double().numpy())
        )
        for name in seen
    ]
    found = second_moments(model, objective, batches)
    for hook in hooks:
        hook.remove()
    for name, first in shared_inputs(model).items():
        rows = np.concatenate([each.reshape(-1, each.shape[-1]) for each in seen[name]])
        np.testing.assert_allclose(found.sums[first].numpy(), rows.T @ rows, rtol=1e-4, atol=1e-4)
        assert found.count == len(rows)
    assert found.tokens == sum(int(batch.lengths.sum()) for _, batch in batches)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "modernbert"])
def test_parts_with_the_same_input_share_moments(family: str) -> None:
    model = ready(family)
    firsts = shared_inputs(model)
    seen: dict[str, torch.Tensor] = {}
    for name in firsts:
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: given[0].detach()})
        )
    logits(model)
    for name, first in firsts.items():
        assert torch.equal(seen[name], seen[first])
    distinct = {first: seen[first] for first in firsts.values()}
    assert len(distinct) == 2 * 4


def test_the_least_directions_match_their_definition() -> None:
    """Compares CorDA's directions with numpy: W C = U S V^T and W = U S V^T C^-1. All terms must sum to W."""
    draw = np.random.default_rng(0)
    weight, rows = draw.normal(size=(6, 9)), draw.normal(size=(30, 9)) * np.linspace(0.1, 2, 9)
    moment = rows.T @ rows / 30
    kept = moment + DAMPING * np.diag(moment).mean() * np.eye(9)
    left, sizes, right = np.linalg.svd(weight @ kept, full_matrices=False)
    terms = [sizes[place] * np.outer(left[:, place], right[place] @ np.linalg.inv(kept)) for place in range(6)]
    np.testing.assert_allclose(sum(terms), weight, atol=1e-10)
    found = least_directions(torch.tensor(weight), torch.tensor(moment), 2)
    np.testing.assert_allclose((found[0] * found[1]) @ found[2], terms[4] + terms[5], atol=1e-10)


def test_a_layer_with_zero_inputs_starts_from_its_smallest_directions() -> None:
    weight = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
    found = least_directions(weight, torch.zeros(4, 4), 2)
    torch.testing.assert_close((found[0] * found[1]) @ found[2], (left[:, -2:] * sizes[-2:]) @ right[-2:])


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_outputs_start_unchanged_and_the_merged_model_computes_the_same(family: str, tmp_path: Path) -> None:
    method, model = prepared(family, moments_of(family, tmp_path))
    torch.testing.assert_close(logits(model), logits(ready(family)), rtol=1e-4, atol=1e-4)
    draw = torch.Generator().manual_seed(1)
    for each in model.parameters():
        if each.requires_grad:
            each.data += torch.randn(each.shape, generator=draw) / 4
    plain = ready(family)
    plain.load_state_dict(method.merge(dict(model.state_dict())), strict=True)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-4)


def test_additions_start_from_the_terms_that_matter_least(tmp_path: Path) -> None:
    _, model = prepared("bert", moments_of("bert", tmp_path))
    part = model.bert.encoder.layer[0].attention.self.key
    up, down = (each["default"].weight.detach() for each in (part.lora_B, part.lora_A))
    weight = ready("bert").bert.encoder.layer[0].attention.self.key.weight.detach()
    moment = load_file(tmp_path / MOMENTS_FILE)["bert.encoder.layer.0.attention.self.query"]
    left, sizes, right = least_directions(weight, moment, RANK)
    torch.testing.assert_close(1.5 * up @ down, ((left * sizes) @ right).float(), rtol=1e-4, atol=1e-6)


def test_moments_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="second moments of another model"):
        prepared("llama", moments_of("bert", tmp_path))


def test_replayed_general_text_is_measured_and_domains_are_averaged() -> None:
    method, config = Lora(LoraOptions(kind="corda")), Config(method=MethodConfig("lora"))
    domain, general = (Toy(name, name, idle) for name in ("domain", "general"))
    start = Start(Pretrained(Path("model"), Path("model")), "digest")
    first = Domain(config, start, (domain,), {}, general)
    (measured,) = method.before(first).values()
    assert (measured.texts, measured.previous) == ((general,), None)
    (alone,) = method.before(Domain(config, start, (domain,), {})).values()
    assert alone.texts == (domain,)
    (joined,) = method.after_domain(Domain(config, start, (domain,), {"moments": measured})).values()
    assert (joined.texts, joined.previous) == ((domain,), measured)
    assert not Lora(LoraOptions(kind="mica")).before(first)


def test_streamed_text_is_refused(tiny_bert: Path) -> None:
    streamed = Config(corpus=CorpusConfig(streaming=True))
    with pytest.raises(ConfigError, match="measured on prepared text") as caught:
        Lora(LoraOptions(kind="corda", rank=RANK)).check(streamed, tiny_bert)
    assert "choose another lora.kind" in caught.value.fix
