"""Predicting at chosen positions gives what the full computation gives, and computes the head nowhere else."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    RobertaConfig,
)

from adapt.errors import ModelError
from adapt.model.head import predict_at

VOCABULARY, WIDTH, LENGTH = 50, 16, 12
BERT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = {
    "bert": BertConfig(**BERT),
    "roberta": RobertaConfig(**BERT),
    "distilbert": DistilBertConfig(dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=32),
    "electra": ElectraConfig(**BERT, embedding_size=8),
    "modernbert": ModernBertConfig(**BERT, global_attn_every_n_layers=2, local_attention=4, sparse_prediction=True),
    "gpt2": GPT2Config(n_embd=WIDTH, n_layer=2, n_head=2),
    "llama": LlamaConfig(**BERT, num_key_value_heads=1),
}


def build(family: str) -> torch.nn.Module:
    config = copy.deepcopy(FAMILIES[family])
    config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id = VOCABULARY, 1, 0, 2
    torch.manual_seed(0)
    kind = AutoModelForCausalLM if family in ("gpt2", "llama") else AutoModelForMaskedLM
    return kind.from_config(config, attn_implementation="sdpa").eval()


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three rows, the second with padding and the third without a target."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, VOCABULARY, (3, LENGTH), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 8:] = 0
    positions = torch.rand(3, LENGTH, generator=generator) < 0.3
    positions[2] = False
    return input_ids, attention_mask, positions & attention_mask.bool()


def gradients(model: torch.nn.Module, logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    cross_entropy(logits.float(), targets).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    return build(request.param)


def test_logits_and_gradients_are_those_of_the_full_computation(model: torch.nn.Module) -> None:
    input_ids, attention_mask, positions = batch()
    full = model(input_ids=input_ids, attention_mask=attention_mask).logits[positions]
    expected = gradients(model, full, input_ids[positions])
    some = predict_at(model, input_ids, attention_mask, positions)
    assert some.shape == (positions.sum(), VOCABULARY)
    torch.testing.assert_close(some, full, rtol=1e-5, atol=1e-6)
    found = gradients(model, some, input_ids[positions])
    assert found.keys() == expected.keys()
    assert len(found) > 10
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_head_sees_target_positions_only(model: torch.nn.Module) -> None:
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0].shape[:-1]))
    input_ids, attention_mask, positions = batch()
    predict_at(model, input_ids, attention_mask, positions)
    assert seen == [(1, positions.sum())]


def test_no_target_gives_no_logits_and_zero_gradients(model: torch.nn.Module) -> None:
    input_ids, attention_mask, positions = batch()
    logits = predict_at(model, input_ids, attention_mask, torch.zeros_like(positions))
    assert logits.shape == (0, VOCABULARY)
    logits.sum().backward()  # a rank whose rows have no target still takes part in the step
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_gradient_checkpointing_and_autocast_change_nothing_else(model: torch.nn.Module) -> None:
    input_ids, attention_mask, positions = batch()
    model.train()
    torch.manual_seed(3)  # the same dropout in both
    with torch.autocast("cpu", dtype=torch.bfloat16):
        full = model(input_ids=input_ids, attention_mask=attention_mask).logits[positions]
    expected = gradients(model, full, input_ids[positions])
    model.gradient_checkpointing_enable()
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        some = predict_at(model, input_ids, attention_mask, positions)
    torch.testing.assert_close(some, full, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients(model, some, input_ids[positions]).items():
        torch.testing.assert_close(gradient, expected[name], rtol=2e-2, atol=2e-3, msg=name)


def test_ordinary_calls_stay_ordinary_also_after_an_error_and_in_a_copy() -> None:
    model = build("bert")
    input_ids, attention_mask, positions = batch()
    predict_at(model, input_ids, attention_mask, positions)
    with pytest.raises(IndexError):
        predict_at(model, input_ids, attention_mask, positions[:, :5])
    assert model(input_ids=input_ids).logits.shape == (3, LENGTH, VOCABULARY)
    assert predict_at(copy.deepcopy(model), input_ids, attention_mask, positions).shape[0] == positions.sum()
    assert len(model.base_model._forward_hooks) == 1


def test_wrapped_model_and_further_inputs() -> None:
    model = build("roberta")
    input_ids, attention_mask, positions = batch()
    wrapper = torch.nn.Module()
    wrapper.module = model
    wrapper.forward = lambda **inputs: model(**inputs)  # as DistributedDataParallel and the DeepSpeed engine call it
    position_ids = torch.arange(2, LENGTH + 2).flip(0).expand(3, -1)
    full = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids).logits[positions]
    some = predict_at(wrapper, input_ids, attention_mask, positions, position_ids=position_ids)
    torch.testing.assert_close(some, full, rtol=1e-5, atol=1e-6)


def test_model_without_a_head_is_refused() -> None:
    model = BertModel(FAMILIES["bert"])
    with pytest.raises(ModelError, match="BertModel does not compute its logits"):
        predict_at(model, *batch())
