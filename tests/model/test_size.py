"""Compares sizes read from config.json and safetensors headers with the sizes of the loaded models."""

import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from adapt.config import TrainingConfig
from adapt.model.size import ModelSize, model_size, read_header
from adapt.model.trainable import rate_factors
from adapt.support.errors import ModelError
from tests.model.architectures import ARCHITECTURES, HIDDEN, INNER, LAYERS, VOCABULARY, random_model
from tests.model.tiny_families import tiny_model


def measured(model: PreTrainedModel) -> tuple[int, int]:
    """Counts the weights of linear modules. Returns the sum over the transformer layers, and the sum over the head."""
    layers = head = 0
    decoder = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D":
            numbered = any(part.isdigit() for part in name.split("."))
            if numbered:
                layers += module.weight.numel()
            elif module is decoder or "embedding" not in name:
                head += module.weight.numel()
            else:
                # the projection from the embeddings to the hidden size counts as a layer
                layers += module.weight.numel()
    return layers, head


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dimensions_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    model.save_pretrained(tmp_path)
    size = model_size(tmp_path)
    assert size is not None
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (size.layers, size.hidden, size.vocabulary) == (LAYERS, HIDDEN, VOCABULARY)
    assert size.inner == INNER
    layers, head = measured(model)
    repeats = LAYERS if name == "albert" else 1
    shared = layers - HIDDEN * size_of_embedding(model) if name == "albert" else 0
    assert size.layer_parameters == layers + (repeats - 1) * shared
    assert size.head_parameters == head
    assert size.embedding_parameters == model.get_input_embeddings().weight.numel()
    assert size.gated == (name in ("modernbert", "llama", "qwen3"))
    assert size.root_mean_square == (name in ("llama", "qwen3"))


def test_embeddings_of_openai_gpt_are_found(tmp_path: Path) -> None:
    """The names of its tables differ from those of other decoders: tokens_embed and positions_embed."""
    model = tiny_model("openai-gpt")
    model.save_pretrained(tmp_path)
    size = model_size(tmp_path)
    assert size is not None
    assert size.parameters == model.num_parameters()
    assert size.embedding_parameters == model.get_input_embeddings().weight.numel()
    layers, head = measured(model)
    assert (size.layer_parameters, size.head_parameters) == (layers, head)
    rates = rate_factors((name for name, _ in size.tensors), size.kind, TrainingConfig(embedding_rate=0.5))
    assert {name for name, rate in rates.items() if rate == 0.5} == {
        "transformer.tokens_embed.weight",
        "transformer.positions_embed.weight",
    }


def size_of_embedding(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().weight.shape[1])


def test_a_tied_matrix_that_is_stored_twice_counts_once(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = random_model("bert")
    model.save_pretrained(tmp_path)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["bert.pooler.dense.weight"] = torch.zeros(HIDDEN, HIDDEN)  # pre-training does not use the pooler
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    size = model_size(tmp_path)
    assert size is not None
    # the decoder's bias may be stored a second time, because BERT also has it as `cls.predictions.bias`
    extra = VOCABULARY if "cls.predictions.decoder.bias" in state else 0
    assert size.parameters == model.num_parameters() + extra


def test_a_sharded_model_has_the_same_size(tmp_path: Path) -> None:
    model = random_model("gpt2")
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="100KB")
    assert (tmp_path / "parts" / "model.safetensors.index.json").exists()
    assert model_size(tmp_path / "parts") == model_size(tmp_path / "whole")


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_without_known_names_has_no_size(tmp_path: Path, missing: str) -> None:
    random_model("bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config[missing]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_size(tmp_path) is None


def test_attention_dropout_has_a_default_per_model_type(tmp_path: Path) -> None:
    random_model("bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for given, expected in ((0.0, 0.0), (0.2, 0.2), (None, 0.1)):
        config["attention_probs_dropout_prob"] = given
        (tmp_path / "config.json").write_text(json.dumps(config))
        size = model_size(tmp_path)
        assert isinstance(size, ModelSize)
        assert size.attention_dropout == expected


def test_invalid_safetensors_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\2" + b"\0" * 7 + b"{}")
    with pytest.raises(ModelError, match="not a safetensors file"):
        read_header(file)
