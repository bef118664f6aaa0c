"""Tests that options of a model do not change the loss. Also tests the precision and loss scale of devices and ranks.

Only `resolve` checks whether a CPU supports a precision. The other tests use fp16 on CPUs.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist

from adapt.config import TrainingConfig
from adapt.method.base import Setting
from adapt.method.lora.method import Lora, LoraOptions
from adapt.model.packing.isolation import keep_documents_apart
from adapt.objective.objective import CausalLanguageModelling
from adapt.support.errors import ConfigError, ModelError, TrainingError
from adapt.train.capacity.device import check_compiler
from adapt.train.model_options import (
    LossScale,
    agreed_precision,
    apply_options,
    freeze,
    layers,
    least_of_ranks,
    resolve,
)
from tests.model.architectures import ARCHITECTURES, LAYERS, random_model
from tests.train.capacity.test_flops import rows
from tests.train.ranks import Ranks
from tests.train.toy import Case, Objective, build, feed, rate, reference, train

CPU = torch.device("cpu")


def gradients(name: str, training: TrainingConfig, dropout: bool = False) -> tuple[float, dict[str, torch.Tensor]]:
    changes = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2} if dropout else {}
    model = random_model(name, **changes)
    keep_documents_apart(model.eval())
    apply_options(model.train(), training, CPU)
    torch.manual_seed(0)
    loss = CausalLanguageModelling().loss(model, rows(10, documents=2))
    loss.backward()
    return loss.item(), {key: parameter.grad for key, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "dropout"), [("bert", False), ("bert", True), ("gpt2", False), ("llama", False), ("distilbert", False)]
)
def test_checkpointing_changes_nothing(name: str, dropout: bool) -> None:
    """Losses and gradients are equal, because the second forward pass draws the same dropout as the first."""
    loss, expected = gradients(name, TrainingConfig(), dropout)
    again, found = gradients(name, TrainingConfig(gradient_checkpointing=True), dropout)
    assert again == loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_frozen_parameters_get_no_gradient() -> None:
    model = random_model("bert")
    freeze(model, TrainingConfig(freeze=["embeddings", "layers:1", "*.output.*"]), "plain")
    keep_documents_apart(model.eval())
    CausalLanguageModelling().loss(model.train(), rows(10, documents=2)).backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    named = {name for name in dict(model.named_parameters()) if "_embeddings." in name or ".output." in name}
    assert without == named | {name for name, _ in model.named_parameters() if ".layer.0." in name}


def test_parameters_are_frozen_in_a_model_with_adapters() -> None:
    """The name of a weight matches although peft renames it, and at least one adapter must be trained."""
    model = Lora(LoraOptions(rank=2)).prepare_model(random_model("bert"), Setting())
    freeze(model, TrainingConfig(freeze=["bert.encoder.layer.0.attention.self.query.weight"]), "lora")
    assert any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ConfigError, match=r"training\.freeze leaves no parameter to train with method\.kind lora"):
        freeze(model, TrainingConfig(freeze=["*.attention.*", "*.intermediate.*", "*.output.*"]), "lora")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_compiling_changes_nothing_but_rounding(name: str) -> None:
    loss, expected = gradients(name, TrainingConfig())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    again, found = gradients(name, TrainingConfig(compile=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # shows that the model was compiled
    assert again == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_known_architectures_are_found(name: str) -> None:
    if name == "albert":  # ALBERT applies one layer repeatedly, and does not declare it as a layer
        return
    assert len(layers(random_model(name), "training.compile")) == LAYERS


def test_a_model_without_support_is_refused() -> None:
    model = random_model("bert")
    model.supports_gradient_checkpointing = False
    with pytest.raises(ModelError, match=r"training\.gradient_checkpointing does not work with BertForMaskedLM"):
        apply_options(model, TrainingConfig(gradient_checkpointing=True), CPU)


def test_a_missing_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    check_compiler(on_gpu=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="looked for no-such-compiler"):
        check_compiler(on_gpu=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="gcc, clang, cc"):
        check_compiler(on_gpu=True)


CPU, GPU = torch.device("cpu"), torch.device("cuda")
STAGES = range(4)


@pytest.mark.parametrize(("has_bf16", "chosen"), [(True, "bf16"), (False, "fp32")])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_auto_is_bf16_where_the_device_has_it(monkeypatch, device, has_bf16, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16})
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16 or including_emulation)
    assert resolve("auto", device) == chosen
    assert resolve("fp32", device) == "fp32"
    if has_bf16:
        assert resolve("bf16", device) == "bf16"
    else:
        with pytest.raises(ConfigError, match="no bf16 arithmetic"):
            resolve("bf16", device)


@pytest.mark.parametrize(
    ("maker", "has_amx", "chosen"),
    [("Intel Xeon", False, "fp32"), ("Intel Xeon", True, "bf16"), ("AMD", False, "bf16")],
)
def test_auto_is_fp32_where_bf16_would_take_longer(monkeypatch, maker, has_amx, chosen):
    known = {"avx512_bf16": True, "amx_bf16": has_amx, "cpu_name": maker}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    assert resolve("auto", CPU) == chosen
    assert resolve("bf16", CPU) == "bf16"


def test_fp16_is_for_gpus():
    assert resolve("fp16", GPU) == "fp16"
    with pytest.raises(ConfigError, match="fp16 is for GPUs") as caught:
        resolve("fp16", CPU)
    assert caught.value.fix == "use bf16, fp32, or auto; if there is a GPU, set resources.gpus_per_worker to 1"


def test_the_scale_halves_at_once_and_doubles_after_2000_steps():
    scale = LossScale()
    assert scale.value == 65536
    scale.update(overflowed=True)
    assert (scale.value, scale.skipped_steps) == (32768, 1)
    for _ in range(1999):
        scale.update(overflowed=False)
    assert scale.value == 32768
    scale.update(overflowed=False)
    assert (scale.value, scale.skipped_steps) == (65536, 1)


def test_the_scale_has_a_ceiling_and_a_floor():
    scale = LossScale(2.0**24)
    for _ in range(2000):
        scale.update(overflowed=False)
    assert scale.value == 2.0**24
    for _ in range(24):
        scale.update(overflowed=True)
    assert scale.value == 1
    with pytest.raises(TrainingError, match="not finite at any loss scale"):
        scale.update(overflowed=True)


def scaled(case, value, objective=None):
    """Returns a loop in fp16 that starts with the loss scale `value`."""
    loop = build(case, objective)
    loop.engine._set_scale(LossScale(value))
    return loop


def train_all(cases):
    """Trains several cases one after another, and returns their outcomes."""
    return [train(case) for case in cases]


def joined(moments):
    """Returns AdamW's two moments, each as one vector over all parameters."""
    return [torch.cat([pair[number].flatten() for pair in moments.values()]) for number in (0, 1)]


def test_fp16_is_near_fp32_and_clips_gradients_without_their_scale(ranks):
    expected = reference(Case())
    for outcome in ranks(2).run(train_all, [Case(stage, precision="fp16") for stage in STAGES])[0]:
        assert outcome.losses != expected.losses
        assert outcome.losses == pytest.approx(expected.losses, rel=5e-3)
        assert outcome.norms == pytest.approx(expected.norms, rel=2e-2)
        assert {average.dtype for pair in outcome.moments.values() for average in pair} == {torch.float32}
        for average, correct in zip(joined(outcome.moments), joined(expected.moments), strict=True):
            assert (average - correct).norm() <= 0.02 * correct.norm()


def test_other_precisions_have_no_scale_after_fp16_in_one_process(ranks):
    """A run in another precision is not scaled, although DeepSpeed remembers the last autocast of a process."""
    expected = ranks(1).run(train_all, [Case(stage) for stage in STAGES])[0]
    outcomes = ranks(1).run(train_all, [each for s in STAGES for each in (Case(s, precision="fp16"), Case(s))])[0]
    assert [outcome.norms for outcome in outcomes[1::2]] == [outcome.norms for outcome in expected]


def overflowing(case, value):
    """Returns each step's norm, scale and whether weights changed, then the final weights and the scale's state."""
    loop = scaled(case, value)
    seen, weights = [], loop.engine.full_state()
    for step, share in enumerate(feed(0, case.steps)):
        before = weights
        _, _, norm = loop.step(share, step, rate(step))
        weights = loop.engine.full_state()
        changed = any(not torch.equal(before[name], weights[name]) for name in before)
        seen.append((norm, loop.engine.scale.value, changed))
    return seen, weights, asdict(loop.engine.scale)


def from_step(case, first, value):
    """Returns the final weights of a run that begins at the step `first`."""
    loop = scaled(case, value)
    for step, share in enumerate(feed(first, case.steps), first):
        loop.step(share, step, rate(step))
    return loop.engine.full_state()


@pytest.mark.parametrize("zero_stage", STAGES)
def test_a_step_that_overflows_lowers_the_scale_and_leaves_no_trace(ranks, zero_stage):
    case = Case(zero_stage, steps=7, precision="fp16", dropout=0.1)
    (seen, weights, state), (others, *_) = ranks(2).run(overflowing, case, 2.0**21)
    skipped = sum(norm == math.inf for norm, *_ in seen)
    assert 0 < skipped < 7
    for number, (norm, value, changed) in enumerate(seen):
        assert (norm == math.inf) == (number < skipped)
        assert value == 2.0 ** (21 - min(number + 1, skipped))
        assert changed == (number >= skipped)
    assert [entry[:2] for entry in others] == [entry[:2] for entry in seen]
    assert state == {"value": 2.0 ** (21 - skipped), "good_steps": 7 - skipped, "skipped_steps": skipped}

    late = ranks(2).run(from_step, case, skipped, 2.0 ** (21 - skipped))[0]
    assert all(torch.equal(value, late[name]) for name, value in weights.items())


class Poisoned(Objective):
    """An objective whose loss is NaN from the third call on, which is the second step."""

    calls = 0

    def loss(self, module, corrupted):
        self.calls += 1
        return super().loss(module, corrupted) * (math.nan if self.calls > 2 else 1.0)


def poisoned(case):
    """Returns the index of the failed step, its message, and whether the weights result from the only good step."""
    loop = scaled(case, 2.0, Poisoned())
    good = None
    for step, share in enumerate(feed(0, case.steps)):
        try:
            loop.step(share, step, rate(step))
        except TrainingError as error:
            after = loop.engine.full_state()
            return step, error.what, all(torch.equal(good[name], after[name]) for name in good)
        good = loop.engine.full_state() if good is None else good
    raise AssertionError("no step failed")


@pytest.mark.parametrize("zero_stage", STAGES)
def test_a_loss_that_stays_nan_ends_the_run(ranks, zero_stage):
    """The loss scale falls from 2 to 1 at step 2, and cannot fall further at step 3."""
    for step, message, untouched in ranks(2).run(poisoned, Case(zero_stage, precision="fp16")):
        assert step == 2
        assert message == "step 3: loss nan, gradients are not finite at any loss scale"
        assert untouched


def save_scaled(case, folder):
    """Saves an engine with a changed loss scale, after a step with a learning rate of 0."""
    loop = scaled(case, 2.0**10)
    loop.engine.scale.good_steps, loop.engine.scale.skipped_steps = 1989, 3
    (share,) = feed(0, 1)
    loop.step(share, 0, 0.0)
    loop.engine.save(folder, {})


def load_scaled(case, folder):
    """Returns the loss scale of an engine that resumes, and the gradient norm of its first step."""
    loop = build(case)
    loop.engine.load(folder)
    (share,) = feed(0, 1)
    _, _, norm = loop.step(share, 0, 0.0)
    return asdict(loop.engine.scale), norm


@pytest.mark.parametrize(("before", "after"), [((1, 0), (1, 0)), ((2, 2), (2, 2)), ((2, 3), (1, 0)), ((1, 0), (2, 1))])
def test_the_scale_is_resumed(ranks, tmp_path, before, after):
    ranks(before[0]).run(save_scaled, Case(before[1], precision="fp16"), tmp_path)
    for state, norm in ranks(after[0]).run(load_scaled, Case(after[1], precision="fp16"), tmp_path):
        assert state == {"value": 1024, "good_steps": 1991, "skipped_steps": 3}
        assert norm == pytest.approx(reference(Case(steps=1)).norms[0], rel=2e-2)


def chosen(wanted: str, has_bf16: list[bool]) -> str:
    """Returns the precision of a rank on a machine with or without bf16, or the message of its error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16[dist.get_rank()]})
        try:
            return agreed_precision(wanted, CPU)
        except ConfigError as error:
            return error.what


@pytest.mark.parametrize(
    ("has_bf16", "expected"),
    [([True, True], "bf16"), ([True, False], "fp32"), ([False, True], "fp32"), ([False, False], "fp32")],
)
def test_auto_is_bf16_where_all_machines_have_it(
    ranks: Callable[[int], Ranks], has_bf16: list[bool], expected: str
) -> None:
    assert ranks(2).run(chosen, "auto", has_bf16) == [expected, expected]
    assert ranks(2).run(chosen, "fp32", has_bf16) == ["fp32", "fp32"]


def test_a_machine_without_the_configured_precision_is_refused(ranks: Callable[[int], Ranks]) -> None:
    can, cannot = ranks(2).run(chosen, "bf16", [True, False])
    assert can == "bf16"
    assert "no bf16 arithmetic" in cannot


def least(numbers: list[int]) -> int:
    return least_of_ranks(numbers[dist.get_rank()], CPU)


def test_the_smallest_number_of_all_ranks(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(least, [7, 3]) == [3, 3]
