"""Tests that causal language modelling predicts each next token of the same document, with the model's own loss."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from adapt.config import ObjectiveConfig
from adapt.model.packing.isolation import keep_documents_apart
from adapt.objective.masking import make
from adapt.objective.objective import Batch, CausalLanguageModelling

DOCUMENTS = [[5, 9, 7, 2], [11, 2], [30], [12, 13, 14, 15, 16, 2]]
LENGTH = 8


def batch() -> Batch:
    """Returns four documents in two rows of 8 tokens.

    The last document is split after its first token. The second row ends with 3 padding tokens.
    """
    tokens = [token for document in DOCUMENTS for token in document]
    starts = [place == 0 for document in DOCUMENTS for place in range(len(document))]
    rows = np.zeros((2, LENGTH), np.int64)
    rows.ravel()[: len(tokens)] = tokens
    begins = np.zeros((2, LENGTH), bool)
    begins.ravel()[: len(tokens)] = starts
    begins[:, 0] = True
    columns = {"tokens": rows, "lengths": np.array([8, 5]), "epochs": np.zeros(2), "rows": np.arange(2)}
    return Batch.of({**columns, "starts": begins})


def test_targets_are_the_next_tokens_of_the_same_document_and_row() -> None:
    corrupted = make(ObjectiveConfig(kind="causal"), None, 0).corrupt(batch())  # type: ignore[arg-type]
    assert torch.equal(corrupted.input_ids, batch().tokens)
    asked = corrupted.positions.int().tolist()
    assert asked == [[1, 1, 1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
    assert corrupted.targets.tolist() == [9, 7, 2, 2, 14, 15, 16, 2]
    assert torch.equal(corrupted.real, batch().real)


def models() -> dict[str, Any]:
    return {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=60, n_positions=16)),
        "llama": lambda: LlamaForCausalLM(
            LlamaConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=24,
                vocab_size=60,
                max_position_embeddings=16,
            )
        ),
    }


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_losses_equal_those_of_each_document_separately(kind: str) -> None:
    torch.manual_seed(0)
    model: PreTrainedModel = models()[kind]().eval()
    pieces = [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[3][:1], DOCUMENTS[3][1:]]
    expected = []
    with torch.no_grad():
        for piece in pieces:
            ids = torch.tensor([piece])
            logits = model(input_ids=ids).logits[0, :-1]
            expected += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()
    keep_documents_apart(model)
    objective = CausalLanguageModelling()
    corrupted = objective.corrupt(batch())
    losses = objective.losses(model, corrupted)
    assert losses.tolist() == pytest.approx(expected, rel=1e-4)
    assert float(objective.loss(model, corrupted)) == pytest.approx(sum(expected), rel=1e-4)


def test_documents_of_one_token_have_nothing_to_predict() -> None:
    columns = {"tokens": np.array([[7, 8]]), "lengths": np.array([2]), "epochs": np.zeros(1), "rows": np.zeros(1)}
    corrupted = CausalLanguageModelling().corrupt(Batch.of({**columns, "starts": np.array([[True, True]])}))
    assert not corrupted.positions.any()
    model = models()["gpt2"]().eval()
    keep_documents_apart(model)
    assert CausalLanguageModelling().losses(model, corrupted).shape == (0,)
