"""Compares the loss and gradient of distillation with results from transformers' own logits and states."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import Gemma2Config

from adapt.config import Config, MethodConfig, ObjectiveConfig
from adapt.method.base import Added, Setting
from adapt.method.derpp.method import Derpp
from adapt.method.distill import Distill, DistillOptions
from adapt.method.table import check_method
from adapt.model.sparse_prediction import gather_of
from adapt.objective.objective import Batch, Corrupted
from adapt.support.errors import ModelError
from tests.method.trained import BEFORE, loaded
from tests.train import toy
from tests.train.capacity.test_memory import ROBERTA


def prepared(**options: Any) -> tuple[Distill, Any]:
    method = Distill(DistillOptions(**options))
    return method, method.prepare_model(toy.model(), Setting(anchor=BEFORE, load=loaded))


def rows() -> Corrupted:
    return toy.Objective().corrupt(Batch.of(toy.columns(0)))


def by_hand(model: Any, seen: Corrupted, options: DistillOptions) -> tuple[Tensor, Tensor]:
    """Computes the mean loss and the mean distance from the teacher with transformers' own forward pass."""
    one, other = (
        each(input_ids=seen.input_ids, attention_mask=seen.real, output_hidden_states=True)
        for each in (model, loaded(BEFORE))
    )
    loss = cross_entropy(one.logits[seen.positions], seen.targets)
    if options.of == "states":
        states = [each.hidden_states[-1][seen.positions] for each in (one, other)]
        return loss, (states[0] - states[1].detach()).square().mean()
    own, theirs = (log_softmax(each.logits[seen.positions] / options.temperature, 1) for each in (one, other))
    distance = kl_div(own, theirs.detach(), reduction="batchmean", log_target=True)
    return loss, distance * options.temperature**2


@pytest.mark.parametrize("size", [8, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "weight": 0.3}, {"of": "states", "weight": 5.0}])
def test_loss_distance_and_gradient_equal_those_of_transformers(options: dict[str, Any], size: int) -> None:
    """Compares with transformers, for one micro-batch of 8 rows and for micro-batches of up to 3 rows."""
    (method, model), seen = prepared(**options), rows()
    count = len(seen.targets)
    total = torch.zeros(())
    for loss, extra in method.losses(model, seen.split(size), toy.Objective(), 0, count):
        assert extra is not None
        (loss / count + extra).backward()
        total += loss.detach() / count + extra.detach()
    plain = toy.model()
    loss, distance = by_hand(plain, seen, method.options)
    (loss + method.options.weight * distance).backward()
    assert total.item() == pytest.approx((loss + method.options.weight * distance).item(), rel=1e-4)
    assert method.report()["distance"] == pytest.approx(distance.item(), rel=1e-4)
    assert distance.item() > 0.01
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert all(each.grad is None for each in method.teacher.models[0].parameters())


OTHER = Path("other")


def either(folder: Path) -> Any:
    """Returns one of two teachers with different weights: one for the folder OTHER, and one for all other folders."""
    model = loaded(BEFORE)
    if folder == OTHER:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.flip(0) * 1.5)
    return model


@pytest.mark.parametrize("of", ["logits", "states"])
def test_the_gradient_of_a_student_is_that_of_plain_torch(of: Any) -> None:
    """Compares with transformers' own logits and states of two teachers. The student learns the teachers' mean."""
    options = DistillOptions(of=of, weight=3.0, temperature=1.5, teachers=["a", "b"])
    method, seen = Distill(options), rows()
    setting = Setting(anchor=Path("unused"), load=either, teachers=(BEFORE, OTHER))
    model = method.prepare_model(toy.model(), setting)
    count = len(seen.targets)
    for loss, extra in method.losses(model, seen.split(3), toy.Objective(), 0, count):
        assert extra is not None
        (loss / count + extra).backward()
    plain = toy.model()
    one, first, second = (
        each(input_ids=seen.input_ids, attention_mask=seen.real, output_hidden_states=True)
        for each in (plain, either(BEFORE), either(OTHER))
    )
    loss = cross_entropy(one.logits[seen.positions], seen.targets)
    if of == "logits":
        mean = sum((each.logits[seen.positions] / 1.5).softmax(1) for each in (first, second)) / 2
        own = log_softmax(one.logits[seen.positions] / 1.5, 1)
        distance = kl_div(own, mean.detach(), reduction="batchmean") * 1.5**2
    else:
        states = [each.hidden_states[-1][seen.positions] for each in (one, first, second)]
        distance = (states[0] - ((states[1] + states[2]) / 2).detach()).square().mean()
    (loss + 3 * distance).backward()
    assert method.report()["distance"] == pytest.approx(distance.item(), rel=1e-4)
    for (name, found), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(found.grad, other.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_the_work_and_memory_of_teachers_are_counted() -> None:
    method = Distill(DistillOptions(teachers=["no-such-folder", "nor-this"]))
    assert method.added_passes() == Added(seen=2.0)
    assert method.added_memory(ROBERTA).held == 8.0 * ROBERTA.parameters
    # the folders of the teachers do not matter, because the key contains the teachers' content
    assert method.what() == Distill(DistillOptions()).what()
    assert Distill(DistillOptions(weight=0.0, teachers=["a"])).other_models == ()


def test_the_distance_is_0_at_first() -> None:
    """Checks that the distance from the teacher is 0 before the first step, because both models are equal."""
    method = Distill(DistillOptions())
    model = method.prepare_model(toy.model(), Setting(load=loaded))
    ((_, extra),) = method.losses(model, [rows()], toy.Objective(), 0, 10)
    assert extra is not None
    assert extra.item() == pytest.approx(0, abs=1e-5)


def test_the_teacher_is_not_a_part_of_the_model() -> None:
    """Checks that the model's state has no parameters of the teacher, so that ZeRO and checkpoints ignore it."""
    method, model = prepared()
    assert model.state_dict().keys() == toy.model().state_dict().keys()
    assert prepared(weight=0.0)[0].teacher is None
    assert prepared(weight=0.0)[0].report() == {}
    assert not method.teacher.models[0].training


def test_added_passes_and_memory() -> None:
    method = Distill(DistillOptions())
    assert method.added_passes() == Added(seen=1.0)
    assert method.added_memory(ROBERTA, shared_by=4).held == 4.0 * ROBERTA.parameters
    assert Distill(DistillOptions(weight=0.0)).added_passes() == Added()


def test_an_unused_temperature_does_not_enter_the_key() -> None:
    assert Distill(DistillOptions(of="states", temperature=9.0)).what() == {
        "kind": "distill",
        "weight": 1.0,
        "of": "states",
    }
    assert Distill(DistillOptions()).what()["temperature"] == 2.0


CAPPED = "Gemma2ForCausalLM changes its scores after its last linear layer"


def test_a_head_that_is_not_linear_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Gemma 2 caps its logits with a tanh, so its head is not linear. Its states can still be compared."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = Gemma2Config(vocab_size=80, **sizes, num_key_value_heads=2, head_dim=8, architectures=["Gemma2ForCausalLM"])
    made.save_pretrained(tmp_path)
    config = replace(Config(), objective=ObjectiveConfig(kind="causal"))
    check_method(replace(config, method=MethodConfig("distill"), method_options=DistillOptions(of="states")), tmp_path)
    for kind, fix in (("distill", "set distill.of to states"), ("derpp", "choose another method.kind")):
        with pytest.raises(ModelError, match=CAPPED) as refused:
            check_method(replace(config, method=MethodConfig(kind)), tmp_path)
        assert fix in refused.value.fix


@pytest.mark.parametrize("kind", [Distill, Derpp])
def test_a_head_that_is_not_linear_is_refused_when_the_model_is_loaded(kind: type[Any]) -> None:
    def capped(_: Any = None) -> Any:
        model = toy.model()
        gather_of(model).is_linear = False
        return model

    with pytest.raises(ModelError, match="BertForMaskedLM changes its scores after its last linear layer"):
        kind(kind.Options()).prepare_model(capped(), Setting(load=capped))
