"""Tests the documentation's table of model families: how each family takes documents, and that it trains correctly."""

import copy
import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from adapt.model.load import check_loads
from adapt.model.packing.isolation import keep_documents_apart
from adapt.model.packing.packed import Packed
from adapt.model.packing.padded import trunk_of
from adapt.model.sparse_prediction import loss_at, losses_at
from adapt.model.states import last_hidden_state
from adapt.support.errors import ModelError
from scripts import families
from scripts.reference import FAMILIES
from tests.model.tiny_families import VOCABULARY, tiny_config, tiny_model

LENGTHS = 9, 3, 21, 9, 14
TRAINED = [family for family, way in FAMILIES.items() if not way.startswith("refused")]
WITH_GRADIENTS = "bert", "deberta-v2", "convbert", "mpnet", "gemma2", "mamba", "opt"


def documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def test_the_table_has_packed_padded_and_refused_families() -> None:
    assert len(TRAINED) >= 80
    assert {way.partition(":")[0] for way in FAMILIES.values()} == {
        *("packed", "shared rows", "padded", "by length", "refused")
    }


@pytest.mark.parametrize("family", TRAINED)
def test_a_family_takes_documents_as_the_table_says_and_keeps_them_apart(family: str) -> None:
    texts, targets = documents(), torch.cat(documents()).flip(0)
    model = tiny_model(family)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        logits = torch.cat([plain(input_ids=text[None]).logits[0] for text in texts]).float()
        states = torch.cat([trunk_of(plain)(input_ids=text[None]).last_hidden_state[0] for text in texts])
    expected = cross_entropy(logits, targets, reduction="none")
    assert keep_documents_apart(model) == FAMILIES[family], "run python -m scripts.families"
    packed = Packed.joined(*map(Packed.single, texts))
    positions = torch.arange(0, packed.tokens, 2)
    losses = losses_at(model, packed, positions, targets[positions])
    torch.testing.assert_close(losses, expected[positions], rtol=2e-4, atol=2e-4)
    with torch.no_grad():
        torch.testing.assert_close(last_hidden_state(model, packed), states, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", WITH_GRADIENTS)
def test_gradients_are_those_of_single_documents(family: str) -> None:
    texts, targets = documents(), torch.cat(documents()).flip(0)
    model = tiny_model(family)
    plain = copy.deepcopy(model)
    logits = torch.cat([plain(input_ids=text[None]).logits[0] for text in texts]).float()
    cross_entropy(logits, targets, reduction="sum").backward()
    keep_documents_apart(model)
    packed = Packed.joined(*map(Packed.single, texts))
    loss_at(model, packed, torch.arange(packed.tokens), targets).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters() if parameter.grad is not None}
    assert found.keys() == wanted.keys()
    assert len(found) > 5
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in TRAINED])
def test_other_families_are_refused_with_the_reason_in_the_table(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(family).to_dict()))
    with pytest.raises(ModelError, match=FAMILIES[family].removeprefix("refused: ")):
        check_loads(tmp_path, None)
    assert families.outcome(family) == FAMILIES[family], "run python -m scripts.families"


def test_the_script_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert families.FILE.read_text("utf-8") == families.written(FAMILIES)
    monkeypatch.setattr(families, "FILE", tmp_path / "families.json")
    monkeypatch.setattr(families, "FAMILIES", {"roberta": "padded"})
    for arguments in ([], ["--add", "bart", "convbert"]):
        monkeypatch.setattr(sys, "argv", ["families", *arguments])
        families.main()
        monkeypatch.setattr(families, "FAMILIES", json.loads(families.FILE.read_text("utf-8")))
    expected = {family: FAMILIES[family] for family in ("bart", "convbert", "roberta")}
    assert families.FILE.read_text("utf-8") == families.written(expected)
