"""Tests that a model whose config.json lists added modules, such as adapters, is loaded with them or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig

from adapt.merge.compatibility import check_architectures
from adapt.model.additions.table import ADDITIONS, additions_of, refuse_additions, stored_additions, with_addition
from adapt.model.load import load_base, load_model, save_model
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError

IDS = torch.tensor([[2, 31, 32, 4, 3]])


class Shifted(nn.Module):
    """An added module that adds `times` times its vector to the states of the last layer."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.times = times
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, layer: nn.Module, given: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        moved = first + self.times * self.shift
        return (moved, *output[1:]) if isinstance(output, tuple) else moved


def attach(model: Any, times: int) -> None:
    """Attaches `Shifted` to a model, like the functions in the table of added modules (ADDITIONS)."""
    layer = model.base_model.encoder.layer[-1]
    layer.shifted = Shifted(model.config.hidden_size, times)
    layer.register_forward_hook(layer.shifted)


@pytest.fixture
def shifted(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a model with the added module `shifted`, whose vector is all ones, and returns its folder."""
    monkeypatch.setitem(ADDITIONS, "shifted", f"{__name__}:attach")
    model = load_model(bert)
    attach(model, 1)
    nn.init.ones_(model.base_model.encoder.layer[-1].shifted.shift)
    folder = tmp_path / "shifted"
    save_model(
        bert, model.state_dict(), load_tokenizer(bert), folder, resize=lambda c: with_addition(c, "shifted", times=1)
    )
    return folder


def test_it_loads_with_and_without_its_head_and_computes_the_same(bert: Path, shifted: Path) -> None:
    states = load_base(bert)(IDS).last_hidden_state
    assert torch.equal(load_base(shifted)(IDS).last_hidden_state, states + 1)
    model, plain = load_model(shifted), load_model(bert)
    assert not model.training
    assert torch.equal(model.base_model(IDS)[0], states + 1)
    assert torch.equal(model.cls(states + 1), model(IDS).logits)
    assert not torch.equal(model(IDS).logits, plain(IDS).logits)
    # the output head is still tied to the embeddings
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_saving_a_loaded_model_again_gives_the_same_files(shifted: Path, tmp_path: Path) -> None:
    model = load_model(shifted)
    save_model(shifted, model.state_dict(), load_tokenizer(shifted), tmp_path / "again")
    names = ("config.json", "model.safetensors")
    folders = (shifted, tmp_path / "again")
    first, second = ([(folder / name).read_bytes() for name in names] for folder in folders)
    assert first == second


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edits the tensors in the weights file of a folder."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


NAME = "bert.encoder.layer.1.shifted.shift"


def test_missing_reshaped_and_unknown_weights_are_refused(shifted: Path) -> None:
    change(shifted, lambda tensors: tensors.update({NAME: torch.zeros(3)}))
    with pytest.raises(ModelError, match=r"shifted.shift \(3,\) instead of \(8,\)"):
        load_model(shifted)
    change(shifted, lambda tensors: tensors.pop(NAME))
    with pytest.raises(ModelError, match=r"lacks weights of its language model: bert\..*\.shifted\.shift"):
        load_model(shifted)
    change(shifted, lambda tensors: tensors.update({NAME: torch.zeros(8), "bert.more": torch.zeros(1)}))
    with pytest.raises(ModelError, match=r"belong neither to its architecture nor to its additions: bert.more"):
        load_model(shifted)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "shiftd", "times": 1}, "config.json names the addition 'shiftd'"),
        ({"kind": "os:system", "times": 1}, "config.json names the addition 'os:system'"),
        ({"kind": "shifted", "often": 1}, "'shifted' in config.json do not fit.*often"),
        ({"times": 1}, "not a list of objects that each have a kind"),
    ],
)
def test_entries_that_cannot_be_attached_are_refused(shifted: Path, entry: dict[str, Any], message: str) -> None:
    config = json.loads((shifted / "config.json").read_text())
    (shifted / "config.json").write_text(json.dumps({**config, "additions": [entry]}))
    with pytest.raises(ModelError, match=message):
        load_model(shifted)


def test_an_entry_replaces_the_one_of_its_kind(bert: Path) -> None:
    config = AutoConfig.from_pretrained(bert)
    assert additions_of(config) == []
    for kind, count in (("a", 1), ("b", 2), ("a", 3)):
        with_addition(config, kind, count=count)
    assert additions_of(config) == [{"kind": "a", "count": 3}, {"kind": "b", "count": 2}]


def test_merging_refuses_a_model_with_additions(bert: Path, shifted: Path) -> None:
    refuse_additions(bert, "merged")
    assert stored_additions(shifted) == [{"kind": "shifted", "times": 1}]
    with pytest.raises(ModelError, match="shifted cannot be merged: it carries shifted in addition to"):
        check_architectures(bert, shifted)
