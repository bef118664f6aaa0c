"""Tests that models which cannot keep packed documents isolated are refused by name."""

import pytest
import torch
import transformers

from adapt.model.packing.isolation import keep_documents_apart
from adapt.support.errors import ModelError
from tests.model.families import BERT, plain

SIZES = {**BERT, "vocab_size": 50, "pad_token_id": 1}
REFUSED = {
    "MPNetForMaskedLM": ("MPNetConfig", {}),  # relative positions as a bias
    "DebertaV2ForMaskedLM": ("DebertaV2Config", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "ConvBertForMaskedLM": ("ConvBertConfig", {"embedding_size": 16}),  # convolutions across documents
    "Gemma2ForCausalLM": ("Gemma2Config", {"num_key_value_heads": 1, "head_dim": 8}),  # soft-caps attention scores
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_architectures_are_refused(name: str):
    config, settings = REFUSED[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**SIZES, **settings)).eval()
    with pytest.raises(ModelError, match=f"{name} cannot keep documents apart"):
        keep_documents_apart(model)


def test_logits_changed_after_the_head_are_refused():
    model = plain("llama")
    forward = model.forward

    def scaled(**inputs: torch.Tensor) -> transformers.modeling_outputs.CausalLMOutputWithPast:
        output = forward(**inputs)
        output.logits = output.logits * 0.999
        return output

    model.forward = scaled
    with pytest.raises(ModelError, match="cannot keep documents apart"):
        keep_documents_apart(model)


def test_wrong_positions_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("adapt.model.sparse_prediction.first_position", lambda config: 0)  # RoBERTa's start at 2
    with pytest.raises(ModelError, match="RobertaForMaskedLM cannot"):
        keep_documents_apart(plain("roberta"))


def test_weights_that_are_not_finite_are_refused():
    model = plain("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[3, 3] = torch.nan
    with pytest.raises(ModelError, match="gives a loss of nan"):
        keep_documents_apart(model)
