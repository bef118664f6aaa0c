"""Tests that nan and infinite weights are refused by name, and that threads load models one after another."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapt.model.load import load_model, save_model
from adapt.model.safeguards import check_finite
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError

NAME = "bert.encoder.layer.0.output.dense.weight"


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("value", "word"), [(torch.nan, "nan"), (torch.inf, "infinite"), (-torch.inf, "infinite")])
def test_a_single_value_that_is_not_finite_is_refused(kind: torch.dtype, value: float, word: str) -> None:
    tensor = torch.zeros(100, 70, dtype=kind)
    check_finite(tensor, "a", "m")
    tensor[99, 69] = value
    with pytest.raises(ModelError, match=rf"^m: the tensor a has values that are not finite: 1 {word} of 7,000"):
        check_finite(tensor, "a", "m")


def test_both_kinds_are_counted() -> None:
    with pytest.raises(ModelError, match=r"2 nan and 1 infinite of 4"):
        check_finite(torch.tensor([torch.nan, torch.inf, torch.nan, 1]), "a", "m")


def test_finite_values_pass() -> None:
    largest = torch.finfo(torch.float32).max
    for tensor in (torch.full((9,), largest), torch.full((9,), -largest), torch.zeros(0, 3), torch.tensor(2)):
        check_finite(tensor, "a", "m")
    check_finite(torch.tensor([True]), "a", "m")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_to_load_must_be_finite(bert: Path, value: float) -> None:
    weights = load_file(bert / "model.safetensors")
    weights[NAME][1, 2] = value
    save_file(weights, bert / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"{bert}: the tensor {NAME} has values that are not finite") as caught:
        load_model(bert)
    assert "download the model again" in caught.value.fix


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_to_save_must_be_finite(bert: Path, tmp_path: Path, value: float) -> None:
    weights = load_model(bert).state_dict()
    weights[NAME][1, 2] = value
    with pytest.raises(ModelError, match=f"the model to save: the tensor {NAME} has values that are not finite"):
        save_model(bert, weights, load_tokenizer(bert), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_threads_do_not_disturb_each_other(tiny_bert: Path) -> None:
    """Checks models that two threads load. Without waiting, almost half of the models would lack tied weights."""
    alone = load_model(tiny_bert).state_dict()
    with ThreadPoolExecutor(2) as threads:
        for model in threads.map(load_model, [tiny_bert] * 8):
            assert all(torch.equal(weight, alone[name]) for name, weight in model.state_dict().items())
