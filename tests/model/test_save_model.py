"""Tests that `transformers` loads a saved folder without our code, and that its outputs equal the saved model's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from adapt.model.load import load_model, save_model
from adapt.model.locate import model_files
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from tests.model.checkpoints import bert_config

Said = Callable[[], str]
IDS = torch.tensor([[2, 31, 32, 4, 3]])


def trained(bert: Path) -> BertForMaskedLM:
    """Loads the model of a folder, adds random noise to all weights and returns it."""
    model = load_model(bert)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    return model


def test_loads_with_transformers_and_computes_the_same(bert: Path, tmp_path: Path, said: Said) -> None:
    model, tokenizer, out = trained(bert), load_tokenizer(bert), tmp_path / "out"
    said()
    save_model(bert, model.state_dict(), tokenizer, out)
    assert said() == ""
    loaded = AutoModelForMaskedLM.from_pretrained(out)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    again = AutoTokenizer.from_pretrained(out)
    text = "the cells ray the cells ray the cells ray"
    assert again(text) == tokenizer(text)
    assert again.model_max_length == tokenizer.model_max_length
    assert again.backend_tokenizer.truncation is None
    assert again.backend_tokenizer.padding is None
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert config["dtype"] == "float32"
    names = {file.name for file in out.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1  # all files have the same permissions
    assert "local" not in (out / "tokenizer_config.json").read_text()
    assert str(tmp_path) not in "".join((out / name).read_text() for name in names - {"model.safetensors"})


def test_weights_become_fp32_and_tied_ones_are_written_once(bert: Path, tmp_path: Path) -> None:
    model = trained(bert).to(torch.bfloat16)
    # copies do not show which weights are tied
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_model(bert, copies, load_tokenizer(bert), tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert "cls.predictions.decoder.weight" not in saved
    assert "cls.predictions.decoder.bias" not in saved
    loaded = load_model(tmp_path / "out")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, copies[name].float()), name


@pytest.mark.parametrize("left_out", ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"])
def test_tied_weights_may_have_only_one_name(bert: Path, tmp_path: Path, left_out: str) -> None:
    model = trained(bert)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != left_out}
    save_model(bert, weights, load_tokenizer(bert), tmp_path / "out")
    assert torch.equal(load_model(tmp_path / "out")(IDS).logits, model(IDS).logits)


def test_tied_weights_with_different_values_are_both_saved(bert: Path, tmp_path: Path) -> None:
    weights = dict(trained(bert).state_dict())
    weights["cls.predictions.decoder.weight"] = weights["cls.predictions.decoder.weight"] + 1
    save_model(bert, weights, load_tokenizer(bert), tmp_path / "out")
    loaded = load_model(tmp_path / "out").state_dict()
    assert torch.equal(loaded["cls.predictions.decoder.weight"], weights["cls.predictions.decoder.weight"])


def test_large_models_are_saved_in_shards(bert: Path, tmp_path: Path) -> None:
    model = trained(bert)
    save_model(bert, model.state_dict(), load_tokenizer(bert), tmp_path / "out", max_shard_size="4KB")
    files = [file.name for file in model_files(tmp_path / "out") if file.suffix == ".safetensors"]
    assert len(files) > 1
    assert "model.safetensors" not in files
    assert torch.equal(AutoModelForMaskedLM.from_pretrained(tmp_path / "out")(IDS).logits, model(IDS).logits)


def test_another_architecture_can_be_saved(bert: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    model = ModernBertForMaskedLM(ModernBertConfig(vocab_size=40, **sizes, **ids)).eval()
    model.save_pretrained(tmp_path / "base")
    save_model(tmp_path / "base", model.state_dict(), load_tokenizer(bert), tmp_path / "out")
    assert torch.equal(AutoModelForMaskedLM.from_pretrained(tmp_path / "out")(IDS).logits, model(IDS).logits)


def test_incomplete_or_foreign_weights_are_refused_before_anything_is_written(bert: Path, tmp_path: Path) -> None:
    weights = dict(trained(bert).state_dict())
    del weights["cls.predictions.transform.dense.bias"]
    weights["delta"] = torch.zeros(1)
    weights["bert.embeddings.LayerNorm.bias"] = torch.zeros(9)
    with pytest.raises(ModelError) as caught:
        save_model(bert, weights, load_tokenizer(bert), tmp_path / "out")
    for part in (
        "missing: cls.predictions.transform.dense.bias",
        "unknown: delta",
        "of another shape: bert.embeddings.LayerNorm.bias",
    ):
        assert part in caught.value.what
    assert not (tmp_path / "out").exists()


def test_saving_does_not_change_the_callers_weights(bert: Path, tmp_path: Path) -> None:
    weights = trained(bert).state_dict()
    before = {name: tensor.clone() for name, tensor in weights.items()}
    save_model(bert, weights, load_tokenizer(bert), tmp_path / "out")
    assert weights.keys() == before.keys()
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert bert_config().vocab_size == weights["cls.predictions.bias"].shape[0]
