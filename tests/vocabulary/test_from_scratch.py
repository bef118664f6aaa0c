"""Tests new models with a tokenizer of the domain, another model's architecture and configured dimensions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ModernBertConfig

from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from adapt.vocabulary.model_changes import DIMENSIONS, write_scratch
from tests.samples import sentences

TEXTS = [f"{text} hepatitis nephritis" for text in sentences(60)]


def written(base: Path, folder: Path, seed: int = 0, dimensions: str | None = None) -> Path:
    folder.mkdir()
    write_scratch(Pretrained(base, base), TEXTS, 150, dimensions, seed, folder)
    return folder


def test_the_tokenizer_knows_the_domain_and_the_model_is_random(tiny_bert: Path, tmp_path: Path) -> None:
    folder = written(tiny_bert, tmp_path / "one")
    tokenizer, model, base = load_tokenizer(folder), load_model(folder), load_model(tiny_bert)
    assert tokenizer.tokenize("Hepatitis nephritis") == ["hepatitis", "nephritis"]
    assert len(tokenizer) == model.config.vocab_size <= 150
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert {*tokenizer.all_special_tokens} == {*load_tokenizer(tiny_bert).all_special_tokens}
    assert type(model) is type(base)
    assert model.config.hidden_size == base.config.hidden_size


def test_special_tokens_of_the_config_have_their_new_ids(tiny_bert: Path, tmp_path: Path) -> None:
    """A config may name several ids for a special token. Ids that the tokenizer does not have are dropped."""
    folder = tmp_path / "base"
    folder.mkdir()
    for file in tiny_bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    old = load_tokenizer(tiny_bert)
    named = {"pad_token_id": old.pad_token_id, "eos_token_id": [old.sep_token_id, 10**6], "bos_token_id": -1}
    (folder / "config.json").write_text(json.dumps({**settings, **named}))
    made = written(folder, tmp_path / "new")
    new, found = load_tokenizer(made), json.loads((made / "config.json").read_text())
    assert found["pad_token_id"] == new.pad_token_id
    assert found["eos_token_id"] == [new.sep_token_id]
    assert found.get("bos_token_id") is None


def test_weights_depend_on_the_seed(tiny_bert: Path, tmp_path: Path) -> None:
    first, same, other = (
        load_model(written(tiny_bert, tmp_path / name, seed)).state_dict()
        for name, seed in (("first", 1), ("same", 1), ("other", 2))
    )
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_dimensions(tiny_bert: Path, tmp_path: Path) -> None:
    config = load_model(written(tiny_bert, tmp_path / "tiny", dimensions="tiny")).config
    found = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
    assert found == tuple(DIMENSIONS["tiny"].values())
    folder = tmp_path / "odd"
    folder.mkdir()
    for file in tiny_bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    del settings["intermediate_size"]
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="so the dimension inner cannot be set to 512"):
        written(folder, tmp_path / "none", dimensions="tiny")


@pytest.mark.parametrize(("dimensions", "types"), [("tiny", "fs"), ("mini", "fsff"), ("small", "fsff")])
def test_lists_with_an_entry_per_layer_follow_the_number_of_layers(
    tiny_bert: Path, tmp_path: Path, dimensions: str, types: str
) -> None:
    """transformers 5 stores `layer_types` in every config.json of ModernBERT, and refuses another number of entries."""
    names = {"f": "full_attention", "s": "sliding_attention"}
    folder = tmp_path / "base"
    folder.mkdir()
    for file in tiny_bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    sizes: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3}
    ids: dict[str, Any] = {
        f"{name}_token_id": number for number, name in enumerate(("pad", "cls", "sep", "bos", "eos"))
    }
    base = ModernBertConfig(
        **sizes, **ids, intermediate_size=64, vocab_size=200, layer_types=[names[mark] for mark in "fsf"]
    )
    base.save_pretrained(folder)
    config = load_model(written(folder, tmp_path / "new", dimensions=dimensions)).config
    assert config.layer_types == [names[mark] for mark in types]
    assert config.num_hidden_layers == DIMENSIONS[dimensions]["layers"]
