"""Tests DAS on a single rank: its masks, its contrast, and its reports."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapt.config import Config, MethodConfig
from adapt.method.base import Method, Setting
from adapt.method.das.importance import Importance, save_importance
from adapt.method.das.method import Das, DasOptions
from adapt.method.table import method_of
from adapt.model.layers import by_parameter
from adapt.model.load import load_model
from adapt.objective.objective import CausalLanguageModelling, Corrupted
from adapt.support.errors import ModelError
from tests.method.das.test_contrast import LENGTHS, importance, rows, separately
from tests.model.families import documents, ready

TEMPERATURE = DasOptions().contrast_temperature
# the tests need only one objective, because all objectives compute their loss in the same way
OBJECTIVE = CausalLanguageModelling()


@pytest.fixture
def learnt(tmp_path: Path) -> dict[str, Path]:
    """Writes an importance file and returns it as the `past` inputs of a method."""
    model = ready("bert")
    save_importance(Importance(importance(model), None, torch.arange(3)), model, tmp_path)
    return {"importance": tmp_path}


def prepared(inputs: dict[str, Path], **changes: Any) -> tuple[Any, Das]:
    model, method = ready("bert"), Das(DasOptions(**changes))
    method.prepare_model(model, Setting(past=inputs))
    return model, method


def test_the_configuration_chooses_das() -> None:
    assert type(method_of(Config())) is Method
    assert type(method_of(Config(method=MethodConfig(kind="das")))) is Das


def passed(method: Das, model: Any, *parts: Corrupted) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Runs the passes of one step and returns the summed loss, the summed contrast, and the gradients of their sum."""
    model.zero_grad()
    total, more = torch.zeros(()), torch.zeros(())
    for loss, extra in method.losses(model, parts, OBJECTIVE, 0, sum(len(part.targets) for part in parts)):
        assert extra is not None
        (loss + extra).backward()
        total, more = total + loss.detach(), more + extra.detach()
    return total, more, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def contrast_of(texts: list[Tensor]) -> Tensor:
    """Computes the expected contrast per document without importance gates, with the loops of test_contrast."""
    return separately(ready("bert"), texts, "lean", None, None)


def test_the_added_loss_is_the_weighted_mean_over_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.method.das.test_contrast.TEMPERATURE", TEMPERATURE)
    model, method = prepared({}, contrast_weight=0.3)
    texts = documents(*LENGTHS)
    seen = rows(texts)
    loss, extra, _ = passed(method, model, seen)
    torch.testing.assert_close(loss, OBJECTIVE.loss(ready("bert"), seen).detach())
    torch.testing.assert_close(extra, 0.3 * contrast_of(texts).detach().mean(), rtol=1e-4, atol=1e-5)


def test_it_reports_the_mean_since_the_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the report averages over documents, since steps have different numbers of documents."""
    monkeypatch.setattr("tests.method.das.test_contrast.TEMPERATURE", TEMPERATURE)
    model, method = prepared({})
    texts = documents(*LENGTHS, 5, 6)
    batches = texts[:2], texts[2:]
    for batch in batches:
        passed(method, model, rows(batch))
    both = torch.cat([contrast_of(batch) for batch in batches])
    assert method.report() == {"plasticity": 1.0, "contrast": pytest.approx(both.mean().item(), rel=1e-4)}
    passed(method, model, rows(batches[0]))
    assert method.report()["contrast"] == pytest.approx(both[:2].mean().item(), rel=1e-4)


def test_plasticity_is_the_mean_of_1_minus_importance(learnt: dict[str, Path]) -> None:
    values = importance(ready("bert"))
    units = [value for each in values.values() for value in each.flatten().tolist()]
    expected = sum(1 - value for value in units) / len(units)
    assert prepared(learnt, contrast_weight=0.0)[1].report() == {"plasticity": pytest.approx(expected)}
    assert prepared(learnt, contrast_weight=0.0, soft_mask="none")[1].report() == {"plasticity": 1.0}
    floored = prepared(learnt, contrast_weight=0.0, plasticity_floor=0.9)[1].report()["plasticity"]
    assert expected < 0.9 - 1e-6 <= floored


def test_masks_scale_steps_and_gates_do_not_change_the_loss(learnt: dict[str, Path]) -> None:
    """Checks that a weight with importance I moves (1 - I) times as far as without masks, under the same loss."""
    seen = rows(documents(*LENGTHS))
    keep = {name: 1 - each for name, each in by_parameter(ready("bert"), importance(ready("bert"))).items()}
    moved = []
    for soft_mask in ("none", "update"):
        model, method = prepared(learnt, soft_mask=soft_mask)
        start = ready("bert").state_dict()
        torch.testing.assert_close(OBJECTIVE.loss(model, seen), OBJECTIVE.loss(ready("bert"), seen))
        passed(method, model, seen)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        weights = method.merge({name: each.detach().clone() for name, each in model.state_dict().items()})
        moved.append({name: weights[name] - start[name] for name, _ in ready("bert").named_parameters()})
    plain, masked = moved
    for name, each in plain.items():
        torch.testing.assert_close(masked[name], keep.get(name, torch.ones(())) * each, rtol=1e-3, atol=1e-5, msg=name)


def test_without_a_contrast_it_adds_nothing(learnt: dict[str, Path]) -> None:
    model, method = prepared(learnt, contrast_weight=0.0)
    seen = rows(documents(*LENGTHS))
    loss, extra = next(method.losses(model, [seen], OBJECTIVE, 0, 1))
    assert extra is None
    assert loss == OBJECTIVE.loss(model, seen)


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "backend"), [("exact", "inductor"), ("lean", "aot_eager"), ("economy", "aot_eager")])
def test_a_compiled_model_computes_the_same(cost: Any, backend: str, tiny_bert: Path, tmp_path: Path) -> None:
    """Compares a model with the same model whose layers are traced.

    With `inductor`, the first layer is also compiled, which takes about 15 s.
    """
    found = []
    for compiles in (False, True):
        model: Any = load_model(tiny_bert, causal=False, attention_dropout=0.0).train()
        for layer in model.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0  # there is no dropout, because compiled layers draw other random numbers
        save_importance(Importance(importance(model), None, torch.arange(3)), model, tmp_path)
        # this dropout rate is too small to drop anything
        method = Das(DasOptions(contrast_cost=cost, injected_dropout=1e-6))
        method.prepare_model(model, Setting(past={"importance": tmp_path}))
        if compiles:
            for layer, through in zip(model.bert.encoder.layer, (backend, "aot_eager"), strict=True):
                layer.compile(backend=through)
        texts = [text % 20 + 5 for text in documents(*LENGTHS)]
        found.append(passed(method, model, rows(texts)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_compiled_model_drops_out_where_it_should(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("adapt.method.das.contrast.QuickDropout", lambda p: lambda states: p * states)
    found = []
    for compiles in (False, True):
        model = ready("llama").train()
        save_importance(Importance(importance(model), None, torch.arange(3)), model, tmp_path)
        method = Das(DasOptions(injected_dropout=0.5))
        method.prepare_model(model, Setting(past={"importance": tmp_path}))
        if compiles:
            for layer in model.model.layers:
                layer.compile(backend="aot_eager")
        for seed in (0, 1):  # the second step has more documents and follows a pass with importance gates
            seen = rows(documents(*LENGTHS, *[3] * seed))
            outcome = passed(method, model, seen)
        found.append(outcome)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_the_contrast_needs_dropout_in_the_model_or_injected(learnt: dict[str, Path]) -> None:
    Das(DasOptions(injected_dropout=0.0)).prepare_model(ready("bert"), Setting())
    Das(DasOptions(injected_dropout=0.0, contrast_weight=0.0)).prepare_model(ready("llama"), Setting())
    with pytest.raises(ModelError, match="LlamaForCausalLM has no dropout, so the two passes over a text") as caught:
        Das(DasOptions(injected_dropout=0.0)).prepare_model(ready("llama"), Setting())
    assert "das.injected_dropout" in caught.value.fix


def test_the_result_is_between_the_earlier_and_the_trained_model(learnt: dict[str, Path]) -> None:
    """Checks that `share` s gives (1 - s) of the earlier weights plus s of the trained and masked weights."""
    anchor, before = Path("before"), {name: each + 1 for name, each in ready("bert").state_dict().items()}
    stored = {anchor: type("Stored", (), {"state_dict": lambda _: before})()}
    made = {}
    for share in (0.3, 1.0):
        model, method = ready("bert"), Das(DasOptions(share=share, contrast_weight=0.0))
        method.prepare_model(model, Setting(past=learnt, anchor=anchor, load=stored.__getitem__))
        moved = {name: each + 2 if each.is_floating_point() else each for name, each in model.state_dict().items()}
        made[share] = method.merge(dict(moved))
    # the masks have an effect
    assert any(not torch.equal(each, moved[name]) for name, each in made[1.0].items() if name in moved)
    for name, found in made[0.3].items():
        weight = made[1.0][name]
        share = 0.3 if found.is_floating_point() else 1.0
        expected = (1 - share) * before[name].double() + share * weight.double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert "share" in Das(DasOptions(share=0.3)).settings()
    assert "share" not in Das(DasOptions()).settings()
