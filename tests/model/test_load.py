"""Tests that loading refuses incomplete or wrong checkpoints and tokenizers, which would train without an error."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    ConvBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    MPNetModel,
    PreTrainedTokenizerFast,
    T5Config,
)

from adapt.model.load import load_base, load_model
from adapt.model.packing.packed import Packed
from adapt.model.packing.padded import document_rows
from adapt.model.states import last_hidden_state
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ModelError
from tests.model.checkpoints import WORDS, bert_config, write_tokenizer

Edit = Callable[..., None]
Said = Callable[[], str]
LONG = "the cell the cell the cell the cell the cell the cell"


def gpt2_config() -> GPT2Config:
    return GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=40, n_positions=32)


def test_tokenizer_does_not_truncate_pad_or_warn(bert: Path, said: Said) -> None:
    # the tokenizer file truncates texts to 6 tokens
    assert len(AutoTokenizer.from_pretrained(bert).backend_tokenizer.encode(LONG)) == 6
    said()
    tokenizer = load_tokenizer(bert)
    assert len(tokenizer.backend_tokenizer.encode(LONG)) == 14
    assert len(tokenizer.backend_tokenizer.encode_batch(["the"])[0]) == 3
    assert len(tokenizer(LONG)["input_ids"]) == 14
    assert tokenizer.model_max_length == 8  # the folder's limit stays, for the exported model
    assert said() == ""


def test_tokenizer_larger_than_the_embeddings_is_refused(bert: Path, edit_config: Edit) -> None:
    write_tokenizer(bert, [*WORDS, "x1", "x2", "x3", "x4"])
    with pytest.raises(ModelError, match=f"has {len(WORDS) + 4} tokens.* embeddings for {len(WORDS) + 3}") as caught:
        load_tokenizer(bert)
    assert caught.value.what.count(str(bert)) == 2


def test_a_few_ids_beyond_the_embeddings_are_refused(bert: Path) -> None:
    file = bert / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["ray"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="has 100 tokens"):
        load_tokenizer(bert)


def test_tokenizer_much_smaller_than_the_embeddings_is_refused(bert: Path) -> None:
    write_tokenizer(bert, WORDS[:12])
    with pytest.raises(ModelError, match=r"has 12 tokens, .* more than padding explains"):
        load_tokenizer(bert)


def test_different_padding_tokens_are_refused(bert: Path, edit_config: Edit) -> None:
    edit_config(bert, pad_token_id=4)
    with pytest.raises(ModelError, match=r"padding token has id 0 .* but id 4 in"):
        load_tokenizer(bert)


def test_tokenizer_without_mask_token_is_refused(bert: Path) -> None:
    file = bert / "tokenizer_config.json"
    settings = {**json.loads(file.read_text()), "tokenizer_class": "TokenizersBackend"}
    settings.pop("mask_token")
    file.write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="has no mask token"):
        load_tokenizer(bert)


def test_another_models_tokenizer_is_refused(bert: Path, tmp_path: Path) -> None:
    other = write_tokenizer(tmp_path / "other", [*WORDS[:-2], "##t", "ray"])
    with pytest.raises(ModelError, match="2 tokens differ, for example '##s' is absent there and id 33") as caught:
        load_tokenizer(bert, other)
    assert str(other) in caught.value.what
    assert str(bert) in caught.value.what


def test_separate_tokenizer_with_the_models_vocabulary_is_accepted(bert: Path, tmp_path: Path) -> None:
    apart = write_tokenizer(tmp_path / "apart")
    assert load_tokenizer(bert, apart).get_vocab() == load_tokenizer(bert).get_vocab()
    for file in bert.glob("tokenizer*"):
        file.unlink()
    assert len(load_tokenizer(bert, apart)) == len(WORDS)
    with pytest.raises(ModelError, match="holds no tokenizer"):  # transformers would create a tokenizer with 5 tokens
        load_tokenizer(bert)


def test_damaged_tokenizer_file_is_refused(bert: Path) -> None:
    (bert / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(ModelError, match=r"the tokenizer of .* cannot be loaded"):
        load_tokenizer(bert)


def test_model_loads_completely_in_fp32_and_silently(bert: Path, said: Said) -> None:
    model = load_model(bert)
    assert isinstance(model, BertForMaskedLM)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == "documents"
    saved = load_file(bert / "model.safetensors")
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, saved["bert.embeddings.word_embeddings.weight"])
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert said() == ""


def test_weights_stored_in_half_precision_become_fp32(bert: Path) -> None:
    BertForMaskedLM(bert_config()).to(torch.float16).save_pretrained(bert)
    assert {p.dtype for p in load_model(bert).parameters()} == {torch.float32}


def test_checkpoint_without_the_head_is_refused_by_name(bert: Path, said: Said) -> None:
    BertModel(bert_config()).save_pretrained(bert)
    said()
    with pytest.raises(ModelError, match=r"cls.predictions.bias") as caught:
        load_model(bert)
    assert "decoder.weight" not in caught.value.what  # the weight is not missing, because it is tied to the embeddings
    assert "such as an embedding model, set model.head to new" in caught.value.fix
    assert said() == ""


def test_the_error_names_weights_of_another_shape(bert: Path, edit_config: Edit) -> None:
    edit_config(bert, intermediate_size=20)
    with pytest.raises(ModelError, match=r"bert.encoder.layer.0.intermediate.dense.bias \(16,\) instead of \(20,\)"):
        load_model(bert)


@pytest.mark.parametrize("keep", [0, 4, 200, -100])
def test_the_error_names_truncated_weights(bert: Path, keep: int) -> None:
    file = bert / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model.safetensors cannot be read"):
        load_model(bert)


def test_the_error_names_a_truncated_shard(bert: Path) -> None:
    BertForMaskedLM(bert_config()).save_pretrained(bert, max_shard_size="4KB")
    (bert / "model.safetensors").unlink()
    load_model(bert)
    shard = sorted(bert.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelError, match=f"{shard.name} cannot be read"):
        load_model(bert)


def test_decoder_is_refused_for_masked_language_modelling(tmp_path: Path) -> None:
    GPT2LMHeadModel(gpt2_config()).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="GPT2LMHeadModel, but masked language modelling needs an encoder") as caught:
        load_model(tmp_path)
    assert "objective.kind to causal and leave out model.head" in caught.value.fix


def test_encoder_is_refused_for_causal_language_modelling(bert: Path) -> None:
    with pytest.raises(ModelError, match="BertForMaskedLM, but causal language modelling needs a decoder") as caught:
        load_model(bert, causal=True)
    assert "objective.kind to mlm" in caught.value.fix


def test_encoder_decoder_is_refused_for_both_objectives(tmp_path: Path) -> None:
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    for causal in (False, True):
        with pytest.raises(ModelError, match="has an encoder and a decoder"):
            load_model(tmp_path, causal)


def test_encoder_configured_as_decoder_counts_as_decoder(bert: Path, edit_config: Edit) -> None:
    edit_config(bert, is_decoder=True)
    with pytest.raises(ModelError, match="needs an encoder"):
        load_model(bert)
    BertLMHeadModel(bert_config(is_decoder=True)).save_pretrained(bert)
    assert isinstance(load_model(bert, causal=True), BertLMHeadModel)


def test_decoder_loads_and_needs_neither_mask_nor_padding(tmp_path: Path) -> None:
    GPT2LMHeadModel(gpt2_config()).save_pretrained(tmp_path)
    backend = Tokenizer(WordLevel({"<|endoftext|>": 0, **{word: 1 + i for i, word in enumerate(WORDS)}}))
    for names, fault in (({"eos_token": "<|endoftext|>"}, None), ({}, "has no end-of-text token")):
        PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(tmp_path)
        if fault:
            with pytest.raises(ModelError, match=fault):
                load_tokenizer(tmp_path)
        else:
            tokenizer = load_tokenizer(tmp_path)
            assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (None, None)
    model = load_model(tmp_path, causal=True)
    assert isinstance(model, GPT2LMHeadModel)
    assert not model.training
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("changes", [{"model_type": "no-such-type"}, {"hidden_size": "wide"}, {"hidden_size": 9}])
def test_impossible_config_is_refused_in_one_line(bert: Path, edit_config: Edit, changes: dict[str, object]) -> None:
    edit_config(bert, **changes)
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_model(bert)
    assert "\n" not in caught.value.what


def test_code_in_the_checkpoint_only_runs_if_allowed(bert: Path, edit_config: Edit) -> None:
    (bert / "mine.py").write_text("raise SystemExit('ran')")
    edit_config(bert, model_type="mine", auto_map={"AutoConfig": "mine.C", "AutoModelForMaskedLM": "mine.M"})
    with pytest.raises(ModelError, match="needs Python code") as caught:
        load_model(bert)
    assert "model.trust_remote_code" in caught.value.fix


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel@main:flash"},
        {"attn_implementation": {"": "someone/kernel"}},
        {"text_config": {"experts_implementation": "someone/kernel"}},
    ],
)
def test_a_kernel_of_the_hub_only_runs_if_allowed(bert: Path, edit_config: Edit, changes: dict[str, object]) -> None:
    edit_config(bert, **changes)
    with pytest.raises(ModelError, match=r"config\.json sets \w+_implementation to .*someone/kernel"):
        load_model(bert)
    with pytest.raises(ModelError, match=r"config\.json sets \w+_implementation"):
        load_tokenizer(bert)


def test_tied_weights_that_differ_in_the_file_are_untied(bert: Path) -> None:
    weights = load_file(bert / "model.safetensors")
    weights["cls.predictions.decoder.weight"] = torch.zeros_like(weights["bert.embeddings.word_embeddings.weight"])
    save_file(weights, bert / "model.safetensors", metadata={"format": "pt"})
    model = load_model(bert)
    assert not model.cls.predictions.decoder.weight.any()
    assert model.bert.embeddings.word_embeddings.weight.any()


def test_attention_dropout_can_be_set(bert: Path, tmp_path: Path) -> None:
    own, none = load_model(bert, causal=False), load_model(bert, causal=False, attention_dropout=0.0)
    assert own.bert.encoder.layer[0].attention.self.dropout.p == 0.1
    assert none.bert.encoder.layer[0].attention.self.dropout.p == 0.0
    assert none.bert.encoder.layer[0].attention.output.dropout.p == 0.1
    GPT2LMHeadModel(gpt2_config()).save_pretrained(tmp_path / "gpt2")
    assert load_model(tmp_path / "gpt2", causal=True, attention_dropout=0.3).transformer.h[0].attn.attn_dropout.p == 0.3


def test_a_model_without_a_language_model_head_has_hidden_states(tiny_bert: Path, tmp_path: Path) -> None:
    original = BertModel.from_pretrained(tiny_bert, add_pooling_layer=False).eval()
    original.save_pretrained(tmp_path)
    texts = [torch.arange(20, 27), torch.arange(40, 43)]
    with torch.inference_mode():
        expected = torch.cat([original(input_ids=text[None]).last_hidden_state[0] for text in texts])
        for folder in (tmp_path, tiny_bert):
            found = last_hidden_state(load_base(folder), Packed.joined(*map(Packed.single, texts)))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_an_incomplete_model_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "deep")
    config = json.loads((tmp_path / "deep" / "config.json").read_text())
    (tmp_path / "deep" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="lacks weights"):
        load_base(tmp_path / "deep")


def test_load_base_refuses_an_encoder_decoder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(ModelError, match="has an encoder and a decoder"):
        load_base(tmp_path)


@pytest.mark.parametrize(("kind", "way"), [(MPNetModel, "padded"), (ConvBertModel, "by length")])
def test_a_base_model_without_packing_computes_documents_as_rows(kind: Any, way: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = kind(kind.config_class(vocab_size=50, **sizes, initializer_range=0.2)).eval()
    model.save_pretrained(tmp_path)
    loaded = load_base(tmp_path)
    rows = document_rows(loaded)
    assert rows is not None
    assert rows.way == way
    texts = [torch.arange(5, 5 + length) for length in (4, 9, 7, 4)]
    states = last_hidden_state(loaded, Packed.joined(*map(Packed.single, texts)))
    expected = torch.cat([model(input_ids=text[None]).last_hidden_state[0] for text in texts])
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)
