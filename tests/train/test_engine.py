import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adapt.method.base import Method
from adapt.support.errors import TrainingError
from tests.train.toy import Case, Objective, assert_close, build, feed, model, rate, reference, train

STAGES = range(4)
OFFLOADED = [Case(2, offload="optimizer"), Case(3, offload="optimizer"), Case(3, offload="all")]
has_bf16 = torch.cpu.get_capabilities().get("avx512_bf16", False)


def train_all(cases: list[Case]) -> list:
    """Trains several cases one after another, and returns their outcomes."""
    return [train(case) for case in cases]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("zero_stage", STAGES)
def test_steps_are_those_of_plain_torch(ranks, zero_stage, world):
    case = Case(zero_stage)
    first, *others = ranks(world).run(train, case)
    expected = reference(case)
    assert min(expected.norms) > 1  # every norm is above the limit of 0.5, so every step was clipped
    assert_close(first, expected)
    assert all(other.norms == first.norms and not other.weights for other in others)


class Recorder(Method):
    """Records the gradients of every step as they reach the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[tuple[str, int, torch.Tensor]]] = []

    def before_step(self, engine, step):
        self.seen.append([])
        engine.change_gradients(self._note)

    def _note(self, part, gradient):
        self.seen[-1].append((part.name, part.begin, gradient.clone()))
        return gradient


def gradients_of(cases: list[Case]) -> list:
    """Returns, for each case, this rank's parts of the gradients at each step, and the final weights."""
    outcomes = []
    for case in cases:
        method = Recorder()
        loop = build(case, method=method)
        for step, share in enumerate(feed(0, case.steps, case.global_batch)):
            loop.step(share, step, rate(step))
        outcomes.append((method.seen, loop.engine.full_state()))
    return outcomes


def joined(parts: list[tuple[str, int, torch.Tensor]], like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Joins the gradient parts of all ranks into whole gradients. An element that no rank holds is NaN."""
    whole = {name: torch.full((value.numel(),), math.nan) for name, value in like.items()}
    for name, begin, values in parts:
        whole[name][begin : begin + len(values)] = values
    return {name: values.view_as(like[name]) for name, values in whole.items()}


@pytest.mark.parametrize("world", [1, 2])
def test_gradients_of_every_step_are_those_of_plain_torch(ranks, world):
    """Gradients are accumulated over passes and reduced over ranks, without a loss scale, before they are clipped."""
    cases = [*map(Case, STAGES), *OFFLOADED]
    expected = reference(cases[0])
    by_rank = ranks(world).run(gradients_of, cases)
    for outcomes in zip(*by_rank, strict=True):
        for step, like in enumerate(expected.gradients):
            found = joined([part for seen, _ in outcomes for part in seen[step]], like)
            torch.testing.assert_close(found, like, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(outcomes[0][1], expected.weights, rtol=1e-4, atol=3e-5)


def test_the_size_of_micro_batches_does_not_matter(ranks):
    expected = reference(Case())
    for outcome in ranks(2).run(train_all, [Case(stage, micro_batch=size) for stage in STAGES for size in (1, 4)])[0]:
        assert_close(outcome, expected)


def test_without_a_limit_gradients_are_not_clipped(ranks):
    free = {"max_gradient_norm": 0.0}
    expected = reference(Case(training=free))
    for outcome in ranks(2).run(train_all, [Case(stage, training=free) for stage in STAGES])[0]:
        assert_close(outcome, expected)


def test_frozen_parameters_stay(ranks):
    start = model().state_dict()
    expected = reference(Case(frozen="embeddings"))
    for outcome in ranks(2).run(train_all, [Case(stage, frozen="embeddings") for stage in STAGES])[0]:
        assert_close(outcome, expected)
        assert all(torch.equal(value, start[name]) for name, value in outcome.weights.items() if "embeddings" in name)


@pytest.mark.skipif(not has_bf16, reason="this machine does not multiply in bf16")
def test_bf16_is_near_fp32_and_keeps_weights_moments_and_sums_in_fp32(ranks):
    expected = reference(Case())
    outcomes = ranks(2).run(train_all, [Case(stage, precision="bf16") for stage in STAGES])[0]
    for outcome in outcomes:
        assert all(map(math.isfinite, outcome.losses))
        assert outcome.losses != expected.losses
        assert outcome.losses == pytest.approx(expected.losses, rel=1e-2)
        assert {value.dtype for value in outcome.weights.values()} == {torch.float32}
        assert {value.dtype for pair in outcome.moments.values() for value in pair} == {torch.float32}
    for outcome in outcomes[1:3]:  # stage 3 uses another `linear`, which rounds differently
        assert outcome.losses == pytest.approx(outcomes[0].losses, rel=1e-6)


class Poisoned(Objective):
    """An objective whose loss is NaN for the second micro-batch of the third step on rank 0."""

    calls = 0

    def loss(self, module, corrupted):
        self.calls += torch.distributed.get_rank() == 0
        return super().loss(module, corrupted) * (math.nan if self.calls == 6 else 1.0)


def poisoned(case: Case) -> tuple[int, str, bool]:
    """Returns the index of the failed step, its message, and whether the step left the weights unchanged."""
    loop = build(case, Poisoned())
    for step, share in enumerate(feed(0, case.steps)):
        before = loop.engine.full_state()
        try:
            loop.step(share, step, rate(step))
        except TrainingError as error:
            after = loop.engine.full_state()
            return step, error.what, all(torch.equal(before[name], after[name]) for name in before)
    raise AssertionError("no step failed")


@pytest.mark.parametrize("zero_stage", STAGES)
def test_a_nan_loss_ends_all_ranks_before_the_step(ranks, zero_stage):
    for step, message, untouched in ranks(2).run(poisoned, Case(zero_stage)):
        assert step == 2
        assert message.startswith("step 3: loss nan, the gradient norm is ")
        assert untouched


def test_dropout_is_drawn_from_seed_step_and_rank(ranks):
    """Losses are equal with equal seeds. Dropout is active, because the engine leaves the model in training mode."""
    case = Case(steps=2, dropout=0.3)
    first, again, plain = ranks(2).run(train_all, [case, case, replace(case, dropout=0.0)])[0]
    assert first.losses == again.losses
    assert all(torch.equal(value, again.weights[name]) for name, value in first.weights.items())
    assert first.losses[0] != plain.losses[0]


def load_nothing(case, written):
    """Returns the error that is raised if DeepSpeed loads nothing, and whether the weights are unchanged."""
    train(replace(written, steps=1, save=case.load))
    engine = build(case).engine
    before = engine.full_state()
    engine._engine.load_checkpoint = lambda *_, **__: (None, None)
    try:
        engine.load(case.load)
    except TrainingError as error:
        after = engine.full_state()
        return error.what, error.fix, all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [
        (0, 0, "delete that folder and run again"),
        (2, 2, "delete that folder and run again"),
        (0, 2, "resume with the number of workers and the ZeRO stage of the run that wrote the checkpoint"),
    ],
)
def test_a_checkpoint_that_deepspeed_does_not_load_is_refused(ranks, tmp_path: Path, before, after, fix):
    what, told, untouched = ranks(1).run(load_nothing, Case(after, load=tmp_path), Case(before))[0]
    assert "DeepSpeed cannot load a checkpoint from " in what
    assert told == fix
    assert untouched


def test_a_resumed_run_goes_on_bit_for_bit(ranks, tmp_path: Path):
    """A resumed run equals an uninterrupted run exactly, at every ZeRO stage.

    Each half runs in new processes. Stage 3 runs last in both halves, because it replaces torch's `linear` in the
    process.
    """
    cases = [Case(stage, steps=6, dropout=0.1) for stage in STAGES]
    folders = [tmp_path / str(stage) for stage in STAGES]
    for folder in folders:
        folder.mkdir()
    saves = [replace(case, save=folder, save_after=3) for case, folder in zip(cases, folders, strict=True)]

    ranks(2).stop()
    whole = ranks(2).run(train_all, saves)[0]
    ranks(2).stop()
    loads = [replace(case, load=folder) for case, folder in zip(cases, folders, strict=True)]
    for resumed, expected in zip(ranks(2).run(train_all, loads)[0], whole, strict=True):
        assert resumed.losses == expected.losses[3:]
        assert resumed.progress.tokens == expected.progress.tokens
        assert all(torch.equal(value, expected.weights[name]) for name, value in resumed.weights.items())
        assert all(map(torch.equal, resumed.moments[name], pair) for name, pair in expected.moments.items())


@pytest.mark.parametrize("world", [1, 2])
def test_offloading_changes_nothing(ranks, world):
    inside = [replace(case, offload="none") for case in OFFLOADED]
    outcomes = ranks(world).run(train_all, [*OFFLOADED, *inside])[0]
    for outside, expected in zip(outcomes[:3], outcomes[3:], strict=True):
        assert_close(outside, expected)
        assert_close(outside, reference(Case()))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *zip(OFFLOADED, OFFLOADED, strict=True),
        *[(OFFLOADED[0], Case(2)), (Case(2), OFFLOADED[0]), (OFFLOADED[2], Case(3)), (Case(3), OFFLOADED[2])],
        *[(OFFLOADED[0], OFFLOADED[2]), (OFFLOADED[2], Case(0))],
    ],
)
def test_an_offloaded_run_resumes_with_or_without_offloading(ranks, tmp_path, before, after):
    ranks(2).run(train, replace(before, steps=3, save=tmp_path))
    resumed = ranks(2).run(train, replace(after, steps=6, load=tmp_path))[0]
    assert_close(resumed, reference(Case(steps=6)), last=3)


@pytest.mark.parametrize("case", OFFLOADED)
def test_a_poisoned_offloaded_run_ends_before_the_step(ranks, case):
    for step, _, untouched in ranks(2).run(poisoned, case):
        assert (step, untouched) == (2, True)
