"""Tests that predictions at chosen positions equal the full computation, and that the head runs only there."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertModel, PreTrainedModel

from adapt.model.packing.packed import Packed
from adapt.model.sparse_prediction import gather_of, loss_and_states, loss_at, losses_at, predict_at, states_of
from adapt.model.states import last_hidden_state
from adapt.support.errors import ModelError
from tests.model.families import FAMILIES, ROWS, VOCABULARY, documents, packed, plain, ready

LENGTHS = 12, 5, 9
TOKENS = sum(LENGTHS)


@pytest.fixture(params=[*FAMILIES, *ROWS])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def case() -> tuple[list[torch.Tensor], Packed, torch.Tensor, torch.Tensor]:
    """Returns documents, the packed documents, positions to predict (none in the second document), and targets."""
    texts = documents(*LENGTHS)
    generator = torch.Generator().manual_seed(3)
    positions = torch.rand(TOKENS, generator=generator) < 0.4
    positions[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]] = False
    targets = torch.randint(VOCABULARY, (int(positions.sum()),), generator=generator)
    return texts, packed(texts, TOKENS + 3), positions.nonzero().flatten(), targets


def full_losses(model: PreTrainedModel, texts: list[torch.Tensor], positions: torch.Tensor, targets: torch.Tensor):
    logits = torch.cat([model(input_ids=text[None]).logits[0] for text in texts])
    return cross_entropy(logits[positions].float(), targets, reduction="none")


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_losses_and_gradients_are_those_of_the_full_computation(family: str):
    texts, together, positions, targets = case()
    reference, model = plain(family), ready(family)
    expected = full_losses(reference, texts, positions, targets)
    torch.testing.assert_close(losses_at(model, together, positions, targets), expected, rtol=1e-4, atol=1e-5)
    loss = loss_at(model, together, positions, targets)
    torch.testing.assert_close(loss, expected.sum(), rtol=1e-5, atol=1e-4)
    wanted, found = gradients(reference, expected.sum()), gradients(model, loss)
    assert found.keys() == wanted.keys()
    assert len(found) > 10
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-4, msg=name)


def test_the_head_runs_at_target_positions_only(family: str):
    _, together, positions, targets = case()
    model = ready(family)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0].shape[:-1]))
    predict_at(model, together, positions)
    loss_at(model, together, positions, targets)
    assert seen == [(1, len(positions))] * 2


def test_no_target_gives_no_logits_and_zero_gradients(family: str):
    _, together, positions, targets = case()
    model = ready(family)
    assert predict_at(model, together, positions[:0]).shape == (0, VOCABULARY)
    loss_at(model, together, positions[:0], targets[:0]).backward()  # ranks without targets need a backward pass too
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_loss_and_states_come_from_the_same_pass(family: str):
    _, together, positions, targets = case()
    model = ready(family)
    loss, states = loss_and_states(model, together, positions, targets)
    expected_loss, expected = loss_at(model, together, positions, targets), last_hidden_state(model, together)
    torch.testing.assert_close((loss, states), (expected_loss, expected))
    weights = torch.randn(TOKENS, 1, generator=torch.Generator().manual_seed(4))
    found = gradients(model, loss + (weights * states).sum())
    wanted = gradients(model, expected_loss + (weights * expected).sum())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert gather_of(model).kept is None


def test_states_of_runs_the_head_at_no_position(family: str):
    _, together, *_ = case()
    model = ready(family)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0].shape[:-1]))
    torch.testing.assert_close(states_of(model, together), last_hidden_state(model, together))
    assert seen == [(1, 0)]


def test_gradient_checkpointing_changes_nothing(family: str):
    _, together, positions, targets = case()
    model = ready(family).train()
    torch.manual_seed(3)  # both passes draw the same dropout
    expected = loss_at(model, together, positions, targets)
    wanted = gradients(model, expected)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(3)
    loss = loss_at(model, together, positions, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(model, loss), wanted)


def test_losses_under_autocast_are_close(family: str):
    _, together, positions, targets = case()
    model = ready(family)
    expected = losses_at(model, together, positions, targets)
    with torch.autocast("cpu", torch.bfloat16):
        found = losses_at(model, together, positions, targets)
    assert found.dtype == torch.float32
    assert (found - expected).abs().mean() < 0.05
    assert not torch.equal(found, expected)


def test_ordinary_calls_do_not_change_even_after_an_error_or_in_a_copy():
    _, together, positions, targets = case()
    model = ready("bert")
    loss_at(model, together, positions, targets)
    with pytest.raises(RuntimeError):
        loss_at(model, together, positions[:5], targets)
    assert model(input_ids=together.input_ids).logits.shape == (1, TOKENS, VOCABULARY)
    assert len(losses_at(copy.deepcopy(model), together, positions, targets)) == len(positions)
    assert len(model.base_model._forward_hooks) == 1


def test_a_wrapped_model_has_the_same_loss():
    _, together, positions, _ = case()
    model = ready("roberta")
    wrapper = torch.nn.Module()
    wrapper.module = model
    # wraps the model, as DistributedDataParallel and the DeepSpeed engine do
    wrapper.forward = lambda **inputs: model(**inputs)
    torch.testing.assert_close(predict_at(wrapper, together, positions), predict_at(model, together, positions))


def test_model_without_a_head_is_refused():
    _, together, positions, targets = case()
    with pytest.raises(ModelError, match="BertModel does not compute its logits"):
        predict_at(BertModel(FAMILIES["bert"]), together, positions)
    with pytest.raises(ModelError, match="BertModel does not compute its logits"):
        loss_at(BertModel(FAMILIES["bert"]), together, positions, targets)
