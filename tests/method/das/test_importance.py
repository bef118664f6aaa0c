"""The file of importance holds what was put in, and is refused for a model that it is not of."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForMaskedLM, BertConfig

from adapt.errors import ModelError, StageError
from adapt.method.das.importance import IMPORTANCE_FILE, Importance, joined_importance, load_importance, save_importance
from adapt.model.layers.units import ones
from tests.model.families import BERT, FAMILIES, ready


def importance(family: str, embedding: bool = False) -> Importance:
    model = ready(family)
    draw = torch.Generator().manual_seed(0)
    units = {kind: torch.rand(each.shape, generator=draw) for kind, each in ones(model).items()}
    tokens = torch.rand(len(model.get_input_embeddings().weight), generator=draw) if embedding else None
    return Importance(units, tokens, torch.tensor([3, 2**40, 5]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("embedding", [False, True])
def test_what_was_saved_is_loaded(tmp_path: Path, family: str, embedding: bool) -> None:
    given = importance(family, embedding)
    save_importance(given, ready(family), tmp_path)
    found = load_importance(tmp_path, ready(family))
    assert found.units.keys() == given.units.keys()
    assert all(torch.equal(found.units[kind], given.units[kind]) for kind in given.units)
    assert torch.equal(found.sample, given.sample)
    assert (found.embedding is None) == (given.embedding is None)
    assert given.embedding is None or (found.embedding is not None and torch.equal(found.embedding, given.embedding))


def test_names_and_types_of_the_file(tmp_path: Path) -> None:
    save_importance(importance("bert", embedding=True), ready("bert"), tmp_path)
    with safe_open(tmp_path / IMPORTANCE_FILE, framework="pt") as file:
        types = {name: str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
        assert file.metadata()["model_type"] == "bert"
    assert types == {
        **dict.fromkeys(("head", "inner", "output", "embedding"), "torch.float32"),
        "sample": "torch.int64",
    }


def test_nothing_else_is_left_and_what_was_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / IMPORTANCE_FILE).write_text("half a file of a run that died")
    save_importance(importance("bert"), ready("bert"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [IMPORTANCE_FILE]
    assert load_importance(tmp_path, ready("bert"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_hidden_layers": 3}, "layers 2 there and 3 here"),
        ({"num_attention_heads": 4}, "head 2 there and 4 here"),
        ({"intermediate_size": 48}, "inner 32 there and 48 here"),
    ],
)
def test_another_depth_or_width(tmp_path: Path, changes: dict[str, int], named: str) -> None:
    save_importance(importance("bert"), ready("bert"), tmp_path)
    other = AutoModelForMaskedLM.from_config(BertConfig(**{**BERT, **changes}, vocab_size=50))
    with pytest.raises(ModelError, match=named) as caught:
        load_importance(tmp_path, other)
    assert "measure importance again" in caught.value.fix


def test_another_architecture(tmp_path: Path) -> None:
    save_importance(importance("bert"), ready("bert"), tmp_path)
    with pytest.raises(ModelError, match="model_type bert there and roberta here"):
        load_importance(tmp_path, ready("roberta"))


def test_another_vocabulary_matters_only_to_masks_of_tokens(tmp_path: Path) -> None:
    other = AutoModelForMaskedLM.from_config(BertConfig(**BERT, vocab_size=60))
    save_importance(importance("bert"), ready("bert"), tmp_path)
    load_importance(tmp_path, other)
    save_importance(importance("bert", embedding=True), ready("bert"), tmp_path)
    with pytest.raises(ModelError, match="vocabulary 50 there and 60 here"):
        load_importance(tmp_path, other)


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / IMPORTANCE_FILE).write_bytes(content)
    with pytest.raises(StageError, match=r"importance\.safetensors cannot be read") as caught:
        load_importance(tmp_path, ready("bert"))
    assert str(tmp_path) in caught.value.fix


def test_tokens_are_joined_where_they_are_known() -> None:
    first, second = torch.tensor([0.1, 0.9]), torch.tensor([0.5, 0.2])
    assert joined_importance(None, None) is None
    assert joined_importance(first, None) is first
    assert joined_importance(None, first) is first
    found = joined_importance(first, second)
    assert found is not None
    assert torch.equal(found, torch.tensor([0.5, 0.9]))
