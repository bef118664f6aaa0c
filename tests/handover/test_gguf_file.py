"""Tests GGUF files: the reader of `transformers` gives the same tokens and logits. Unsupported models are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from adapt.handover.gguf_file import frequency_factors
from adapt.handover.to_gguf import GgufOptions, ToGguf, read_vocabulary
from adapt.support.errors import ConfigError, ModelError
from tests.handover.models import FAMILIES, LLAMA_3, bytewise, characterwise, decoder, exported, exporting
from tests.samples import sentences

gguf = pytest.importorskip("gguf")
TEXTS = [
    *sentences(8),
    "12345 metres, isn't it?\n\n  Two  spaces",
    "naïve café 東京 \u200b 😀",
    "acute myocardial syndrome",
]


def logits(model: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = model(torch.tensor([ids])).logits.numpy()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_same_model(family: str, tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", family, bytewise("qwen2" if "qwen" in family else "gpt-2"))
    written = ToGguf(GgufOptions("f32")).write(exported(folder))
    assert written.files == ["gguf/model-f32.gguf"]
    assert written.difference == 0
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    # transformers does not read Qwen3's head size and GPT-2's number of positions from a GGUF file
    known = {"config": model.config} if family in ("qwen3", "gpt2") else {}
    read = AutoModelForCausalLM.from_pretrained(folder / "gguf", gguf_file="model-f32.gguf", **known).eval()
    ids = list(range(0, 60, 3))
    np.testing.assert_allclose(logits(read, ids), logits(model, ids), atol=2e-5)


@pytest.mark.parametrize("make", [bytewise, characterwise])
def test_transformers_reads_the_same_tokens(make: Any, tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", make())
    ToGguf(GgufOptions()).write(exported(folder))
    ours = AutoTokenizer.from_pretrained(folder)
    read = AutoTokenizer.from_pretrained(folder / "gguf", gguf_file="model-f16.gguf")
    for text in TEXTS:
        assert read(text, add_special_tokens=False).input_ids == ours(text, add_special_tokens=False).input_ids, text


@pytest.mark.parametrize(("kind", "most"), [("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 1 / 127)])
def test_weights_are_rounded_to_the_type(kind: str, most: float, tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", bytewise(), tie_word_embeddings=True)
    written = ToGguf(GgufOptions(kind)).write(exported(folder))  # type: ignore[arg-type]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(folder / written.files[0]).tensors}
    assert "output.weight" not in tensors
    assert tensors["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    assert tensors["token_embd.weight"].tensor_type.name == kind.upper()
    largest = max(float(weight.abs().max()) for weight in AutoModelForCausalLM.from_pretrained(folder).parameters())
    assert written.difference is not None
    assert 0 < written.difference <= most * largest


@pytest.mark.parametrize(
    ("family", "table"), [("llama", "model.embed_tokens.weight"), ("gpt2", "transformer.wte.weight")]
)
def test_a_stored_head_is_left_out_only_if_it_equals_the_embeddings(family: str, table: str, tmp_path: Path) -> None:
    """transformers 5 does not tie a head that is stored and differs, whatever config.json says."""
    folder = decoder(tmp_path / "model", family, bytewise(), tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    heads = []
    for added in (0.0, 1.0):
        head = weights[table] + added
        save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
        written = ToGguf(GgufOptions("f32")).write(exported(folder))
        assert written.difference == 0
        tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(folder / written.files[0]).tensors}
        heads.append(tensors.get("output.weight"))
    assert heads[0] is None
    np.testing.assert_array_equal(heads[1], head.numpy())


def test_the_header_has_the_model(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", bytewise("llama-bpe"), rope_parameters=LLAMA_3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(folder)
    ToGguf(GgufOptions("f32")).write(exported(folder))
    reader = gguf.GGUFReader(folder / "gguf" / "model-f32.gguf")
    read = {name: field.contents() for name, field in reader.fields.items()}
    assert read["general.architecture"] == "llama"
    assert read["llama.attention.head_count_kv"] == 2
    assert read["llama.rope.freq_base"] == 10000
    assert read["tokenizer.ggml.pre"] == "llama-bpe"
    assert read["tokenizer.ggml.tokens"][-3:] == ["[PAD321]", "[PAD322]", "[PAD323]"]
    assert read["tokenizer.ggml.token_type"][0] == 3
    assert read["tokenizer.ggml.token_type"][320:] == [4, 5, 5, 5]
    assert read["tokenizer.ggml.add_bos_token"] is False
    assert read["tokenizer.chat_template"] == "{{ messages }}"
    assert {tensor.name for tensor in reader.tensors} >= {"rope_freqs.weight", "output.weight"}


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_has_its_linear_scaling_in_the_header(family: str, tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    folder = decoder(tmp_path / "model", family, bytewise("qwen2"), rope_parameters=rope)
    ToGguf().refuse(exporting(["gguf"], "causal"), folder)
    ToGguf(GgufOptions("f32")).write(exported(folder))
    reader = gguf.GGUFReader(folder / "gguf" / "model-f32.gguf")
    assert "rope_freqs.weight" not in {tensor.name for tensor in reader.tensors}
    assert reader.fields[f"{family}.rope.scaling.type"].contents() == "linear"
    assert reader.fields[f"{family}.rope.scaling.factor"].contents() == 4
    with pytest.raises(
        ConfigError, match=f"scales positions by llama3, which a GGUF file cannot store for {family} models"
    ):
        ToGguf().refuse(
            exporting(["gguf"], "causal"),
            decoder(tmp_path / "other", family, bytewise("qwen2"), rope_parameters=LLAMA_3),
        )


def test_factors_are_those_of_the_model_that_transformers_computes(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", bytewise(), rope_parameters=LLAMA_3)
    config = AutoModelForCausalLM.from_pretrained(folder).config
    scaled = LlamaRotaryEmbedding(config).inv_freq.numpy()
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    plain = LlamaRotaryEmbedding(config).inv_freq.numpy()
    assert frequency_factors(config) is None
    config.rope_parameters = LLAMA_3
    np.testing.assert_allclose(frequency_factors(config), plain / scaled, rtol=1e-6)


@pytest.mark.parametrize("split", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_the_split_is_named(split: str, tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=bytewise(split)).save_pretrained(tmp_path)
    assert read_vocabulary(tmp_path).pre == split


@pytest.mark.parametrize("split", ["gpt-2", "smollm", "llama-bpe"])
def test_a_space_before_the_text_which_llama_cpp_does_not_add_is_refused(split: str, tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=bytewise(split)).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    parts = content["pre_tokenizer"].get("pretokenizers", [content["pre_tokenizer"]])
    parts[-1]["add_prefix_space"] = True
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"does not support the way in which the tokenizer"):
        read_vocabulary(tmp_path)


def test_a_large_weight_needs_a_larger_type(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", bytewise())
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"blk.0.ffn_up.weight .* differs .*\n.*gguf.type to bf16"):
        ToGguf(GgufOptions()).write(exported(folder))
    assert not list((folder / "gguf").iterdir())


def test_an_encoder_is_refused(tiny_bert: Path) -> None:
    with pytest.raises(ConfigError, match=r"bert is trained as an encoder, so it cannot .* gguf\n.*use onnx"):
        ToGguf().refuse(exporting(["gguf"]), tiny_bert)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model_type": "rwkv"}, "not available for rwkv"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "scales positions by yarn"),
        ({"sliding_window": 8}, "attends to the last 8 tokens only"),
    ],
)
def test_other_decoders_are_refused(change: dict[str, Any], fault: str, tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model", "llama", bytewise())
    ToGguf().refuse(exporting(["gguf"], "causal"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ConfigError, match=fault):
        ToGguf().refuse(exporting(["gguf"], "causal"), folder)


def test_other_tokenizers_are_refused(tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(ConfigError, match="needs a BPE tokenizer"):
        read_vocabulary(tiny_bert)
    with pytest.raises(ConfigError, match=r"tokenizer.json, which does not exist"):
        read_vocabulary(tmp_path)
    strange = Tokenizer(models.BPE({"a": 0}, []))
    strange.pre_tokenizer = pre_tokenizers.Whitespace()
    strange.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="does not support the way in which the tokenizer"):
        read_vocabulary(tmp_path)
