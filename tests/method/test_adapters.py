"""Tests adapters per domain: trained parameters, the saved model, initial weights, and refused settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, CorpusConfig
from adapt.method.base import Setting
from adapt.method.domain_parameters import Adapters, AdaptersOptions
from adapt.model.additions.domain_modules import domains_of, sets_of
from adapt.model.load import load_model, save_model
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import AdaptError
from tests.train.capacity.test_memory import ROBERTA


def learnt(folder: Path, domain: str, target: Path, **options: Any) -> Any:
    """Imitates training on a domain by adding 1 to the trainable parameters, and saves the model in `target`."""
    method = Adapters(AdaptersOptions(width=4, **options))
    model = method.prepare_model(load_model(folder), Setting(domain=domain))
    for parameter in model.parameters():
        parameter.data += parameter.requires_grad
    state = method.merge(model.state_dict())
    save_model(folder, state, load_tokenizer(folder), target, resize=method.resize)
    return model


def test_a_domain_trains_only_its_own_adapters(tiny_bert: Path, tmp_path: Path) -> None:
    first = learnt(tiny_bert, "cs", tmp_path / "one")
    second = learnt(tmp_path / "one", "bio", tmp_path / "two")
    trained = {name for name, each in second.named_parameters() if each.requires_grad}
    assert trained
    assert all(".adapters." in name and ".1." in name for name in trained)
    before, after = first.state_dict(), load_model(tmp_path / "two").state_dict()
    named = "bert.domains.vectors"
    assert {name for name in after if name not in before} == trained
    assert all(torch.equal(before[name], after[name]) for name in before if name != named)
    # a second training on "cs" starts from the adapters of "cs"
    again = learnt(tmp_path / "two", "cs", tmp_path / "three")
    assert {name for name, each in again.named_parameters() if each.requires_grad} == {
        name for name, each in first.named_parameters() if each.requires_grad
    }
    known = domains_of(load_model(tmp_path / "three"))
    assert known is not None
    assert known.names == ["cs", "bio"]


def test_all_domains_can_share_one_set(tiny_bert: Path, tmp_path: Path) -> None:
    learnt(tiny_bert, "cs", tmp_path / "one", per_domain=False)
    model = learnt(tmp_path / "one", "bio", tmp_path / "two", per_domain=False)
    assert {len(sets) for sets in sets_of(model)} == {1}
    assert domains_of(load_model(tmp_path / "two")) is None
    for sets in sets_of(load_model(tmp_path / "two")):
        assert torch.equal(sets[0].up.bias, torch.full_like(sets[0].up.bias, 2.0))


def test_initial_weights_depend_on_seed_and_domain(tiny_bert: Path) -> None:
    def first(**setting: int) -> torch.Tensor:
        model = Adapters(AdaptersOptions()).prepare_model(load_model(tiny_bert), Setting(**setting))
        return sets_of(model)[0][0].down.weight.detach()

    assert torch.equal(first(seed=1, number=1), first(seed=1, number=1))
    assert not torch.equal(first(seed=1, number=1), first(seed=1, number=2))
    assert not torch.equal(first(seed=1, number=1), first(seed=2, number=1))


def check(folder: Path, streaming: bool = False, **options: Any) -> None:
    config = Config(corpus=CorpusConfig(streaming=streaming))
    Adapters(AdaptersOptions(**options)).check(config, folder)


def write_config(folder: Path, *additions: dict[str, Any], model_type: str = "bert") -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "additions": additions}))
    return folder


def test_models_and_options_that_cannot_work_are_refused(tmp_path: Path) -> None:
    made = {"kind": "adapters", "sets": 1, "width": 64, "form": "sequential", "placement": "both", "scale": 1.0}
    named = {"kind": "domains", "names": ["cs"]}
    check(write_config(tmp_path))
    check(write_config(tmp_path, made, named))
    check(write_config(tmp_path, made), per_domain=False)
    check(write_config(tmp_path), per_domain=False, streaming=True)
    with pytest.raises(AdaptError, match="the mean embedding of a domain is measured on prepared text"):
        check(tmp_path, streaming=True)
    with pytest.raises(AdaptError, match=r"adapters.width is 8, but .* were created with 64"):
        check(write_config(tmp_path, made, named), width=8)
    del made["scale"]  # as if the option had been added after the model was written
    with pytest.raises(AdaptError, match=r"adapters.scale is 1.0, but .* has adapters that were created without this"):
        check(write_config(tmp_path, made, named))
    made["scale"] = 1.0
    with pytest.raises(
        AdaptError, match=r"adapters.per_domain is true, but .* has one set of adapters for all domains"
    ):
        check(write_config(tmp_path, made))
    with pytest.raises(AdaptError, match=r"adapters.per_domain is false, but .* has a set of adapters for each domain"):
        check(write_config(tmp_path, made, named), per_domain=False)
    with pytest.raises(AdaptError, match=r"already has masks, with which method.kind adapters cannot be combined"):
        check(write_config(tmp_path, {"kind": "masks"}))
    with pytest.raises(AdaptError, match="the layer names of t5 models are not known"):
        check(write_config(tmp_path, model_type="t5"))


def test_added_memory_and_trained_size() -> None:
    added = Adapters(AdaptersOptions(width=64)).added_memory(ROBERTA)
    matrices = 12 * 2 * 2 * 768 * 64
    assert added.held == 4 * matrices
    assert added.trained == pytest.approx(matrices / ROBERTA.parameters)
    assert Adapters(AdaptersOptions(width=64, placement="attention")).added_memory(ROBERTA).held == 2 * matrices
