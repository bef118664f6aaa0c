"""Tests the checks that models have the base's architecture and tokens. Models may have new tokens after the base's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapt.merge.compatibility import NewTokens, check_architectures, new_tokens, vocabulary_of
from adapt.model.locate import Pretrained
from adapt.support.errors import ModelError
from tests.merge.folders import extended


def at(folder: Path) -> Pretrained:
    return Pretrained(folder, folder)


@pytest.fixture
def size(tiny_bert: Path) -> int:
    return len(vocabulary_of(at(tiny_bert)))


def test_models_with_the_tokens_of_the_base_have_no_new_ones(tmp_path: Path, tiny_bert: Path) -> None:
    """Tokenizers that only differ in their chat template count as equal."""
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "copy"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert new_tokens(at(tiny_bert), [at(folder), at(tiny_bert)]) is None


def test_new_tokens_have_ids_after_those_of_the_base(tmp_path: Path, tiny_bert: Path, size: int) -> None:
    one = extended(tmp_path / "one", tiny_bert, ["qubit", "gluon"])
    two = extended(tmp_path / "two", tiny_bert, ["qubit", "gluon"], seed=1)
    found = new_tokens(at(tiny_bert), [at(tiny_bert), at(one), at(two)])
    assert found == NewTokens(first=size, number=2, extended=(1, 2))


def test_models_with_different_new_tokens_are_refused(tmp_path: Path, tiny_bert: Path, size: int) -> None:
    one = extended(tmp_path / "one", tiny_bert, ["qubit", "gluon"])
    two = extended(tmp_path / "two", tiny_bert, ["gluon", "qubit"])
    with pytest.raises(ModelError, match="2 tokens differ, such as 'gluon'") as caught:
        new_tokens(at(tiny_bert), [at(one), at(two)])
    assert f"id {size} in the first model, id {size + 1} in the second" in str(caught.value)
    assert all(str(folder) in str(caught.value) for folder in (one, two))


def test_a_base_with_more_tokens_than_a_model_is_refused(tmp_path: Path, tiny_bert: Path) -> None:
    one = extended(tmp_path / "one", tiny_bert, ["qubit"])
    with pytest.raises(ModelError, match="such as 'qubit': absent in the first model, id"):
        new_tokens(at(one), [at(tiny_bert)])


def test_a_token_with_the_id_of_a_token_of_the_base_is_refused(tmp_path: Path, tiny_bert: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "other"))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    word = next(word for word in words if word.isalpha())
    content["model"]["vocab"] = {("zzz" if each == word else each): number for each, number in words.items()}
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="2 tokens differ") as caught:
        new_tokens(at(tiny_bert), [at(folder)])
    assert f"'{min(word, 'zzz')}'" in str(caught.value)
    file.unlink()  # if tokenizer.json is missing, transformers loads the tokenizer and raises an error
    with pytest.raises(ModelError):
        new_tokens(at(tiny_bert), [at(folder)])


def test_the_same_tokens_with_other_rows_are_refused(tmp_path: Path, tiny_bert: Path, size: int) -> None:
    other = extended(tmp_path / "other", tiny_bert, [], filling=3)
    with pytest.raises(ModelError, match=f"vocabulary size is {size + 3} in its config.json, and {size} in the base's"):
        new_tokens(at(tiny_bert), [at(other)])


def test_a_broken_tokenizer_is_named(tmp_path: Path, tiny_bert: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "other"))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        new_tokens(at(tiny_bert), [at(folder)])


def changed(folder: Path, base: Path, **settings: Any) -> Path:
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("model_type", "roberta", "model_type is roberta in its config.json, and bert"),
        ("hidden_size", 64, "hidden is 64"),
        ("num_hidden_layers", 3, "layers is 3"),
        ("num_attention_heads", 4, "heads is 4"),
        ("hidden_act", "relu", "activation is relu"),
    ],
)
def test_another_architecture_is_named(tmp_path: Path, tiny_bert: Path, setting: str, value: Any, said: str) -> None:
    other = changed(tmp_path / "other", tiny_bert, **{setting: value})
    with pytest.raises(ModelError) as caught:
        check_architectures(tiny_bert, other)
    assert all(words in str(caught.value) for words in (said, str(other), str(tiny_bert)))


def test_settings_that_do_not_affect_weights_may_differ(tmp_path: Path, tiny_bert: Path) -> None:
    other = changed(
        tmp_path / "other", tiny_bert, dtype="bfloat16", attention_probs_dropout_prob=0.3, transformers_version="5.0"
    )
    check_architectures(tiny_bert, other)


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
BY_LAYER = {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 100.0}}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"rope_theta": 10000.0}, {"rope_theta": 500000.0}, "rope_theta is 500000.0"),
        ({"rope_theta": 10000.0}, {"rope_parameters": {"rope_theta": 10000}}, ""),
        ({"rope_theta": 10000.0}, {"rope_parameters": LINEAR}, "rope_type is linear in its config.json, and default"),
        ({"rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 4}}, {"rope_parameters": LINEAR}, ""),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_parameters": LINEAR}, "factor is 4.0"),
        ({"rope_theta": 10000.0, "rope_scaling": None}, {}, ""),
        ({"rope_parameters": BY_LAYER}, {"rope_parameters": BY_LAYER}, ""),
        ({"rope_parameters": BY_LAYER}, {"rope_theta": 10000.0}, ""),
        (
            {"rope_parameters": BY_LAYER},
            {"rope_parameters": {**BY_LAYER, "sliding_attention": {"rope_theta": 10.0}}},
            "rope_theta of sliding_attention is 10.0",
        ),
    ],
)
def test_positions_must_be_computed_alike(
    tmp_path: Path, tiny_bert: Path, one: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    """Folders of transformers 4 and 5 name the same settings differently."""
    base, model = changed(tmp_path / "base", tiny_bert, **one), changed(tmp_path / "model", tiny_bert, **other)
    if not said:
        check_architectures(base, model)
        return
    with pytest.raises(ModelError) as caught:
        check_architectures(base, model)
    assert said in str(caught.value)
