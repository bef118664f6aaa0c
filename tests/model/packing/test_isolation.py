"""Tests whether a model gets documents packed or as rows. A model that mixes documents in every form is refused."""

import copy

import pytest
import torch
import transformers

from adapt.model.packing.isolation import keep_documents_apart, keep_states_apart
from adapt.model.packing.padded import DocumentRows, document_rows, trunk_of
from adapt.model.sparse_prediction import gather_of
from adapt.support.errors import ModelError
from tests.model.families import BERT, plain
from tests.model.tiny_families import tiny_model

SIZES = {**BERT, "vocab_size": 50, "pad_token_id": 1}
WAYS = {
    "BertForMaskedLM": ("packed", {}),
    "MPNetForMaskedLM": ("padded", {}),  # MPNet adds a bias for relative positions
    "DebertaV2ForMaskedLM": ("shared rows", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "Gemma2ForCausalLM": ("padded", {"num_key_value_heads": 1, "head_dim": 8}),  # Gemma 2 soft-caps attention scores
    "ConvBertForMaskedLM": ("by length", {"embedding_size": 16}),  # ConvBERT's convolutions reach into padding
}


def built(name: str, settings: dict[str, object]) -> transformers.PreTrainedModel:
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model: transformers.PreTrainedModel = kind(kind.config_class(**SIZES, **settings)).eval()
    return model


@pytest.mark.parametrize("name", WAYS)
def test_a_model_takes_documents_in_the_cheapest_way_that_keeps_them_apart(name: str):
    way, settings = WAYS[name]
    model = built(name, settings)
    usual = model.config._attn_implementation
    assert keep_documents_apart(model) == way
    rows = document_rows(model)
    assert (rows.way if rows else "packed") == way
    assert (model.config._attn_implementation == usual) == (way != "packed")


def test_without_a_way_a_model_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Makes the model return the states of all tokens in reverse order, so that documents get wrong losses."""
    leave = DocumentRows.leave

    def reversed_order(self: DocumentRows, module: object, *arguments: object) -> object:
        output = leave(self, module, *arguments)
        if self._layout is not None:
            output.last_hidden_state = output.last_hidden_state.flip(1)
        return output

    monkeypatch.setattr(DocumentRows, "leave", reversed_order)
    with pytest.raises(ModelError, match="MPNetForMaskedLM cannot keep documents separate"):
        keep_documents_apart(built("MPNetForMaskedLM", {}))


def test_a_decoder_that_sees_later_tokens_is_refused():
    sizes = {"vocab_size": 50, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
    model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes)).eval()
    with pytest.raises(ModelError, match="XLNetLMHeadModel sees the tokens that it has to predict"):
        keep_documents_apart(model)


def test_logits_changed_after_the_head_are_computed_by_the_head():
    model = plain("llama")
    forward = model.forward

    def scaled(**inputs: torch.Tensor) -> transformers.modeling_outputs.CausalLMOutputWithPast:
        output = forward(**inputs)
        output.logits = output.logits * 0.999
        return output

    model.forward = scaled
    assert keep_documents_apart(model) == "packed"
    assert not gather_of(model).is_linear


def test_models_with_wrong_positions_are_not_packed(monkeypatch: pytest.MonkeyPatch):
    # wrong: RoBERTa's first position is 2
    monkeypatch.setattr("adapt.model.packing.padded.first_position", lambda config: 0)
    assert keep_documents_apart(plain("roberta")) == "padded"


def test_weights_that_are_not_finite_are_refused():
    model = plain("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[3, 3] = torch.nan
    with pytest.raises(ModelError, match="gives a loss of nan"):
        keep_documents_apart(model)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "mobilebert", "longformer"])
def test_a_model_without_its_head_gets_documents_in_the_same_way(family: str):
    model = tiny_model(family)
    base = copy.deepcopy(trunk_of(model))
    assert keep_states_apart(base) == keep_documents_apart(model)
