"""Tests HAT and CPT: units and outputs of an earlier domain do not change, while other units learn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.config import Config, CorpusConfig
from adapt.method.base import Setting
from adapt.method.hat.method import Cpt, CptOptions, Hat, HatOptions
from adapt.model.additions.domain_modules import choose_domain, sets_of
from adapt.model.load import load_model, save_model
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import AdaptError
from tests.method.lora.test_method import logits
from tests.method.trained import Trained, prepared, train_all
from tests.model.families import FAMILIES, ready
from tests.train.capacity.test_memory import ROBERTA
from tests.train.toy import Case

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "adapters": ("hat", {"width": 6}),
    "model": ("hat", {"on": "model"}),
    "cpt": ("cpt", {"width": 6}),
}
LAYER = "bert.encoder.layer.1"


def used(weights: Mapping[str, Tensor], place: str, is_hard: bool) -> Tensor:
    """Computes a mask of the earlier domain: embedding > 0 if `is_hard`, else a sigmoid of steepness 400."""
    embedding = weights[f"{LAYER}.{place}.0.embedding"].clamp(-6, 6)
    return (embedding > 0).float() if is_hard else torch.sigmoid(400 * embedding)


def wholly_used(weights: Mapping[str, Tensor], name: str, is_hard: bool) -> dict[str, Tensor]:
    """Returns masks for some parameters of layer 1. They are true at the elements that must not change."""
    found = {}
    if name == "model":
        heads, inner, output = (used(weights, f"unit_masks.{kind}", False) for kind in ("head", "inner", "output"))
        rows = heads.repeat_interleave(5) == 1
        for part in ("query", "key", "value"):
            found[f"attention.self.{part}.weight"] = rows[:, None].expand(10, 10)
            found[f"attention.self.{part}.bias"] = rows
        found["attention.output.dense.weight"] = rows[None].expand(10, 10)
        found["intermediate.dense.weight"] = (inner == 1)[:, None].expand(15, 10)
        found["output.dense.weight"] = (output == 1)[:, None] & (inner == 1)[None]
    else:
        inner, outer = (used(weights, f"plugins.feed_forward.{each}", is_hard) for each in ("inner", "outer"))
        found["plugins.feed_forward.first.weight"] = (inner == 1)[:, None].expand(6, 10)
        found["plugins.feed_forward.first.bias"] = inner == 1
        found["plugins.feed_forward.second.weight"] = (outer == 1)[:, None] & (inner == 1)[None]
        found["plugins.feed_forward.second.bias"] = outer == 1
    return {f"{LAYER}.{part}": each for part, each in found.items()}


@pytest.mark.parametrize("name", ["adapters", "model", "cpt"])
def test_used_parameters_do_not_change(ranks: Any, name: str) -> None:
    """Checks with Adam and weight decay, at every ZeRO stage, that used parameters do not change and most others do."""
    kind, options = RUNS[name]
    runs = [Trained(Case(stage), kind, options, is_second=True) for stage in range(4)]
    start = {each: value.clone() for each, value in prepared(runs[0])[1].state_dict().items()}
    for found in ranks(2).run(train_all, runs)[0]:
        stay, other = [], []
        for parameter, stays in wholly_used(start, name, kind == "cpt").items():
            moved = found.weights[parameter] != start[parameter]
            assert not moved[stays].any(), parameter
            stay.append(stays.flatten())
            other.append(moved[~stays].flatten())
        assert torch.cat(stay).sum() > 40
        assert torch.cat(other).float().mean() > 0.5
        trained = {each for each, value in start.items() if not torch.equal(value, found.weights[each])}
        kept = ("embeddings", "cls.", "domains", ".0.embedding", *(() if kind == "cpt" else ("LayerNorm",)))
        assert not [each for each in trained if any(part in each for part in kept) and "plugins" not in each]


def learnt(name: str, folder: Path, domain: str, target: Path, **more: Any) -> Any:
    """Imitates training on a domain by random changes of the trainable parameters, then saves the model in `target`.

    The embeddings of masks are at least 0.2 away from 0, so that every unit is used fully or not at all.
    """
    kind, options = RUNS[name]
    method: Any = Hat(HatOptions(**options, **more)) if kind == "hat" else Cpt(CptOptions(**options, **more))
    model: Any = method.prepare_model(load_model(folder), Setting(domain=domain, length=9))
    draw = torch.Generator().manual_seed(len(domain))
    for each, parameter in model.named_parameters():
        if parameter.requires_grad:
            moved = torch.randn(parameter.shape, generator=draw)
            parameter.data = moved + 0.2 * moved.sign() if each.endswith("embedding") else parameter + 0.3 * moved
    save_model(folder, method.merge(dict(model.state_dict())), load_tokenizer(folder), target, resize=method.resize)
    return method


@pytest.mark.parametrize("name", RUNS)
def test_outputs_for_a_domain_stay_the_same_after_later_domains(name: str, tiny_bert: Path, tmp_path: Path) -> None:
    more = {"train_norms": False} if name.startswith("cpt") else {}
    learnt(name, tiny_bert, "cs", tmp_path / "one", **more)
    method = learnt(name, tmp_path / "one", "reviews", tmp_path / "two", **more)
    assert 0.2 < method.report()["free_units"] < 0.8
    first, second = logits(load_model(tmp_path / "one")), logits(load_model(tmp_path / "two"))
    assert (first - second).abs().max() > 0.01
    again = logits(load_model(tmp_path / "two", domain="cs"))
    torch.testing.assert_close(again, first, rtol=1e-5, atol=1e-5)
    assert (first - logits(load_model(tiny_bert))).abs().max() > 0.01


def test_cpt_shares_only_its_norms_without_masks(tiny_bert: Path, tmp_path: Path) -> None:
    learnt("cpt", tiny_bert, "cs", tmp_path / "one")
    learnt("cpt", tmp_path / "one", "reviews", tmp_path / "two")
    one, two = (load_model(tmp_path / each).state_dict() for each in ("one", "two"))
    shared = {name for name in one if not torch.equal(one[name], two[name]) and "domains" not in name}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in shared} == {"LayerNorm", "first", "second"}


@pytest.mark.parametrize("on", ["adapters", "model"])
@pytest.mark.parametrize("family", FAMILIES)
def test_masks_can_be_added_to_every_family(family: str, on: Any) -> None:
    model: Any = ready(family)
    method = Hat(HatOptions(on=on, width=4))
    before = logits(model)
    method.prepare_model(model, Setting(domain="cs", length=9))
    assert len(sets_of(model)) == 2 * (3 if on == "model" else 4)
    if on == "adapters":
        torch.testing.assert_close(logits(model), before)  # the outputs are unchanged, because new plugins output 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1
    masked = logits(model)
    for sets in sets_of(model):
        embedding: Any = sets[0].embedding
        embedding.data.fill_(-1.0)
    assert (masked - logits(model)).abs().max() > 1e-3
    choose_domain(model, "cs")


def check(method: Any, folder: Path, streaming: bool = False) -> None:
    method.check(Config(corpus=CorpusConfig(streaming=streaming)), folder)


def test_models_and_options_that_cannot_work_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    learnt("adapters", tiny_bert, "cs", tmp_path)
    check(Hat(HatOptions(width=6)), tmp_path)
    faults = [
        (Hat(HatOptions(width=5)), False, r"hat\.width is 5, but .* has plugins that were created with 6"),
        (
            Cpt(CptOptions(width=6)),
            False,
            r"form of method.kind cpt is 'parallel', but .* has plugins .* with 'sequential'",
        ),
        (Hat(HatOptions(on="model")), False, r"already has plugins, with which method.kind hat cannot be combined"),
        (Hat(HatOptions(width=6)), True, r"corpus\.streaming is set, but the mean embedding of a domain"),
    ]
    for method, streaming, words in faults:
        with pytest.raises(AdaptError, match=words):
            check(method, tmp_path, streaming)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    with pytest.raises(AdaptError, match="albert"):
        check(Hat(HatOptions()), tmp_path)


def test_added_memory_and_trained_size() -> None:
    adapters, whole = (Hat(HatOptions(on=on)).added_memory(ROBERTA) for on in ("adapters", "model"))  # type: ignore[arg-type]
    plugins = 4 * ROBERTA.layers * ROBERTA.hidden * 512
    assert adapters.held == 8 * plugins
    assert adapters.trained == pytest.approx(plugins / ROBERTA.parameters)
    assert whole.held == whole.kept == 4 * ROBERTA.layer_parameters
    assert Cpt(CptOptions()).added_memory(ROBERTA) == adapters
