"""Tests DEMix: trained parameters, initial experts, the saved model, and refused settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adapt.config import Config, CorpusConfig
from adapt.method.base import Setting
from adapt.method.domain_parameters import Demix
from adapt.model.additions.domain_modules import domains_of
from adapt.model.load import load_model, save_model
from adapt.model.size import model_size
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import AdaptError
from tests.method.lora.test_method import logits
from tests.train.capacity.test_memory import ROBERTA

PROTOTYPES = {"cs": 0.0, "bio": 10.0, "law": 7.0, "news": 1.0}


def prepared(folder: Path, domain: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Demix, Any]:
    """Returns the method and the model before training on a domain. The domain's prototype is set to PROTOTYPES."""
    prototype = torch.full((32,), PROTOTYPES[domain])
    monkeypatch.setattr("adapt.model.additions.domain_modules.prototype_of", lambda model, texts: prototype)
    method = Demix()
    return method, method.prepare_model(load_model(folder), Setting(domain=domain))


def learnt(folder: Path, domain: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imitates training on a domain by random changes of the trainable parameters, and saves the model in `target`."""
    method, model = prepared(folder, domain, monkeypatch)
    draw = torch.Generator().manual_seed(len(domain))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape, generator=draw) / 8
    save_model(folder, method.merge(model.state_dict()), load_tokenizer(folder), target, resize=method.resize)
    return model


def test_a_domain_trains_only_its_own_experts(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = learnt(tiny_bert, "cs", tmp_path / "one", monkeypatch)
    second = learnt(tmp_path / "one", "bio", tmp_path / "two", monkeypatch)
    trained = {name for name, each in second.named_parameters() if each.requires_grad}
    assert trained
    assert all(".domain_experts.1." in name for name in trained)
    before, after = first.state_dict(), load_model(tmp_path / "two").state_dict()
    assert {name for name in after if name not in before} == trained
    assert all(torch.equal(before[name], after[name]) for name in before if not name.endswith("domains.vectors"))
    for name in ("cs", "bio"):
        assert torch.equal(logits(load_model(tmp_path / "two", domain=name)), logits(first if name == "cs" else second))
    # a second training on "cs" starts from the experts of "cs"
    again = prepared(tmp_path / "two", "cs", monkeypatch)[1]
    assert torch.equal(logits(again), logits(first))
    assert {name for name, each in again.named_parameters() if each.requires_grad} == {
        name for name, each in first.named_parameters() if each.requires_grad
    }


def test_a_new_expert_copies_the_nearest(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = logits(load_model(tiny_bert))
    assert torch.equal(logits(prepared(tiny_bert, "cs", monkeypatch)[1]), base)
    cs = logits(learnt(tiny_bert, "cs", tmp_path / "one", monkeypatch))
    bio = logits(learnt(tmp_path / "one", "bio", tmp_path / "two", monkeypatch))
    assert torch.equal(logits(prepared(tmp_path / "two", "law", monkeypatch)[1]), bio)
    assert torch.equal(logits(prepared(tmp_path / "two", "news", monkeypatch)[1]), cs)
    assert (cs - bio).abs().max() > 0.01


def test_a_saved_model_lists_its_experts(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt(tiny_bert, "cs", tmp_path / "one", monkeypatch)
    learnt(tmp_path / "one", "bio", tmp_path / "two", monkeypatch)
    known = domains_of(load_model(tmp_path / "two"))
    assert known is not None
    assert known.names == ["cs", "bio"]
    base, two = model_size(tiny_bert), model_size(tmp_path / "two")
    assert base
    assert two
    experts = 2 * 2 * base.layers * base.hidden * base.inner
    assert 0 <= two.parameters - base.parameters - experts < 0.05 * experts  # all other new parameters are biases
    # the number of layer parameters per token is unchanged, because a token passes through only one expert
    assert two.layer_parameters == base.layer_parameters
    check(tmp_path / "two")
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    for entry in config["additions"]:
        entry |= {"names": ["cs", "bio", "law"]} if entry["kind"] == "domains" else {}
    (tmp_path / "two" / "config.json").write_text(json.dumps(config))
    for refused in (check, load_model):
        with pytest.raises(AdaptError, match=r"names 3 domains \(cs, bio, law\), but has experts for 2"):
            refused(tmp_path / "two")


def check(folder: Path, streaming: bool = False) -> None:
    Demix().check(Config(corpus=CorpusConfig(streaming=streaming)), folder)


def test_models_and_options_that_cannot_work_are_refused(tmp_path: Path) -> None:
    def write(kind: str, model_type: str = "bert") -> Path:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "additions": [{"kind": kind}]}))
        return tmp_path

    check(write("experts"))
    with pytest.raises(AdaptError, match="the mean embedding of a domain is measured on prepared text"):
        check(write("experts"), streaming=True)
    with pytest.raises(AdaptError, match=r"already has adapters, with which method.kind demix cannot be combined"):
        check(write("adapters"))
    with pytest.raises(AdaptError, match="the layer names of t5 models are not known"):
        check(write("experts", "t5"))


def test_added_memory_and_trained_size() -> None:
    method, blocks = Demix(), 12 * 2 * 768 * 3072
    third = method.trained_size(ROBERTA, range(1, 4))
    assert third.parameters == ROBERTA.parameters + 3 * blocks
    assert third.layer_parameters == ROBERTA.layer_parameters
    assert method.added_memory(third).trained == pytest.approx(blocks / third.parameters)
