from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from adapt.method.base import Method
from adapt.train.loop import Ahead, StepRows, pass_seed
from adapt.train.schedule import learning_rate
from adapt.train.training_run import Progress
from tests.train.toy import GLOBAL_BATCH, LENGTH, Case, build, columns, feed, model, reference, settings

STEPS = 7
INTERVALS = {"log_interval_steps": 3, "checkpoint_interval_steps": 2}


class Run(NamedTuple):
    """Events of a training loop on one rank."""

    reports: list[dict[str, Any]]
    saved: list[Progress]
    asked: int
    """Number of batches that the loop took."""
    progress: Progress
    weights: dict[str, torch.Tensor]


def run(case: Case, progress: Progress) -> Run:
    """Runs a loop that starts at `progress`, on the calling rank."""
    loop = build(case)
    reports: list[dict[str, Any]] = []
    saved: list[Progress] = []
    asked = 0

    def batches() -> Iterator[dict[str, Any]]:
        nonlocal asked
        for share in feed(progress.step, case.steps):
            asked += 1
            yield share

    loop.run(batches(), progress, reports.append, lambda reached: saved.append(replace(reached)))
    return Run(reports, saved, asked, progress, loop.engine.full_state())


@pytest.fixture(scope="module")
def both(ranks) -> list[Run]:
    """Runs a whole training run on two ranks, and returns the events of each rank."""
    return ranks(2).run(run, Case(steps=STEPS, training=INTERVALS), Progress())


def test_reports_and_checkpoints_come_at_their_intervals_and_at_the_end(both):
    for each in both:
        assert [report["step"] for report in each.reports] == [3, 6, 7]
        assert [progress.step for progress in each.saved] == [2, 4, 6, 7]
        assert each.saved[-1] == each.progress


def test_the_last_step_saves_once_when_its_interval_ends_too(ranks):
    (each,) = ranks(1).run(run, Case(steps=4, training=INTERVALS), Progress())
    assert [progress.step for progress in each.saved] == [2, 4]
    assert [report["step"] for report in each.reports] == [3, 4]


def test_losses_are_means_over_the_interval_and_all_ranks(both):
    """Reported losses equal the losses of plain torch with the loop's schedule.

    The reported loss is a mean over all predictions, and not a mean of the ranks' means.
    """
    training = settings(**INTERVALS)
    rates = [learning_rate(training, step, STEPS) for step in range(STEPS)]
    expected = reference(Case(steps=STEPS), rates)
    means = [sum(expected.losses[first:last]) / (last - first) for first, last in [(0, 3), (3, 6), (6, 7)]]
    for each in both:
        assert [report["loss"] for report in each.reports] == pytest.approx(means, rel=1e-5)
        assert [report["learning_rate"] for report in each.reports] == [rates[2], rates[5], rates[6]]
        norms = [expected.norms[step] for step in (2, 5, 6)]
        assert [report["gradient_norm"] for report in each.reports] == pytest.approx(norms, rel=1e-4)
    torch.testing.assert_close(both[0].weights, expected.weights, rtol=1e-4, atol=1e-5)


def test_tokens_are_counted_over_all_ranks(both):
    tokens = [int(columns(step)["lengths"].sum()) for step in range(STEPS)]
    for each in both:
        assert [report["tokens"] for report in each.reports] == [sum(tokens[:last]) for last in (3, 6, 7)]
        assert each.progress.tokens == sum(tokens) < STEPS * GLOBAL_BATCH * LENGTH


def test_times_add_up(both):
    for each in both:
        progress = each.progress
        assert progress.device_seconds == pytest.approx(2 * progress.seconds)
        assert 0 < progress.data_wait_seconds < progress.seconds
        for report in each.reports:
            assert 0 <= report["data_wait_share"] < 1
            assert report["tokens_per_s"] > 0
        assert each.reports[-1]["eta_s"] == 0


def test_a_resumed_loop_takes_only_the_remaining_batches(ranks, both):
    start = both[0].saved[1]
    for each in ranks(2).run(run, Case(steps=STEPS, training=INTERVALS), start):
        assert each.asked == STEPS - start.step == 3
        assert [report["step"] for report in each.reports] == [6, 7]
        assert each.progress.tokens == both[0].progress.tokens
    assert all(each.asked == STEPS for each in both)


def test_a_finished_run_takes_no_batches(ranks):
    (each,) = ranks(1).run(run, Case(steps=STEPS), Progress(step=STEPS))
    assert (each.asked, each.reports, each.saved) == (0, [], [])


def order(case: Case) -> list[str]:
    """Runs a loop on more batches than steps. Returns the order in which it takes batches and ends passes."""
    loop, events = build(case), []
    step = loop.engine.step

    def batches() -> Iterator[dict[str, Any]]:
        for number, share in enumerate(feed(0, 2 * case.steps)):
            events.append(f"batch {number}")
            yield share

    def ended(*arguments: Any) -> float:
        events.append("pass")
        return step(*arguments)

    loop.engine.step = ended  # type: ignore[method-assign]
    loop.run(batches(), Progress(), lambda report: None, lambda reached: None)
    return events


def test_a_batch_is_prepared_before_the_host_waits_for_the_previous_step(ranks):
    """So a GPU does not wait until the host has chosen the next tokens to predict. No batch is taken in vain."""
    (events,) = ranks(1).run(order, Case(steps=3))
    three = ["pass"] * 3
    assert events == ["batch 0", *three, "batch 1", "pass", *three, "batch 2", "pass", *three, "pass"]


@pytest.mark.parametrize("has_finished", [True, False])
def test_a_gpu_that_still_computes_does_not_wait_for_a_batch(
    monkeypatch: pytest.MonkeyPatch, has_finished: bool
) -> None:
    event = SimpleNamespace(query=lambda: has_finished)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=lambda: event))
    ahead = Ahead(iter([{}]), lambda columns: StepRows(Any, 1), torch.device("cuda"))  # type: ignore[arg-type]
    ahead.fetch()
    assert (ahead.waited_s() > 0) == has_finished
    assert ahead.take()


def short(case: Case, batches: int) -> tuple[list[int], list[int], int]:
    """Runs a loop whose batches end early, and returns its saved steps, its reported steps and its last step."""
    progress, saved, reports = Progress(), [], []
    build(case).run(
        feed(0, batches), progress, lambda report: reports.append(report["step"]), lambda p: saved.append(p.step)
    )
    return saved, reports, progress.step


@pytest.mark.parametrize(("batches", "saved"), [(4, [2, 4]), (5, [2, 4, 5])])
def test_a_run_ends_where_its_batches_do(ranks, batches, saved):
    """The last step is saved once, even if a checkpoint interval ends at this step."""
    for each in ranks(2).run(short, Case(steps=STEPS, training=INTERVALS), batches):
        assert each == (saved, [3], batches)


class Pull(Method):
    """A method that pulls all weights towards 1 with a penalty that does not depend on the batch."""

    strength = 0.5

    def extra_loss(self, model, corrupted, step):
        return self.strength / 2 * sum((parameter - 1).square().sum() for parameter in model.parameters())


class Twice(Method):
    """A method that counts the mean loss of a micro-batch twice. Like distillation, it adds a mean over predictions."""

    def __init__(self, objective) -> None:
        self.objective = objective

    def extra_loss(self, model, corrupted, step):
        return self.objective.loss(model, corrupted) / len(corrupted.targets)


def gradients(case: Case, method_name: str) -> list[dict[str, torch.Tensor]]:
    """Returns the first step's gradients, without and with the method. They are computed from AdamW's first moments."""
    from tests.train.toy import Objective, moments

    methods = [Method(), Pull() if method_name == "pull" else Twice(Objective())]
    seen = []
    for method in methods:
        loop = build(case, method=method)
        loop.step(columns(0, dist.get_rank(), dist.get_world_size()), 0, 0.0)
        seen.append({name: first / (1 - 0.9) for name, (first, _) in moments(loop.engine).items()})
    return seen


SHARDINGS = [(1, 8), (1, 2), (2, 4), (2, 1)]  # (number of ranks, micro-batch)
FREE = {"max_gradient_norm": 0.0}


@pytest.mark.parametrize(("world", "micro_batch"), SHARDINGS)
@pytest.mark.parametrize("zero_stage", [0, 2])
def test_a_penalty_on_the_weights_counts_once(ranks, world, micro_batch, zero_stage):
    """The gradient of the penalty is strength x (w - 1), however the global batch is divided."""
    plain, pulled = ranks(world).run(gradients, Case(zero_stage, micro_batch=micro_batch, training=FREE), "pull")[0]
    for name, parameter in model().named_parameters():
        torch.testing.assert_close(
            pulled[name] - plain[name], Pull.strength * (parameter.detach() - 1), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(("world", "micro_batch"), SHARDINGS)
def test_a_mean_over_predictions_becomes_that_of_the_global_batch(ranks, world, micro_batch):
    """Adding the mean loss again doubles all gradients, even if the numbers of predictions differ by micro-batch."""
    plain, twice = ranks(world).run(gradients, Case(micro_batch=micro_batch, training=FREE), "twice")[0]
    for name, gradient in plain.items():
        torch.testing.assert_close(twice[name], 2 * gradient, rtol=1e-4, atol=1e-6)


class Doubled(Method):
    """A method that calls the objective itself, and counts the calls."""

    calls = 0

    def losses(self, model, parts, objective, step, predictions):
        for part in parts:
            self.calls += 1
            loss = objective.loss(model, part)
            yield loss, loss / predictions

    def report(self):
        calls, self.calls = self.calls, 0
        return {"calls": calls}


def doubled() -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Returns the reports of a loop, and the gradients of its first step."""
    from tests.train.toy import moments

    loop = build(Case(steps=STEPS, training={**INTERVALS, **FREE}), method=Doubled())
    reports: list[dict[str, Any]] = []
    loop.run(feed(0, STEPS), Progress(), reports.append, lambda progress: None)
    first = build(Case(training=FREE), method=Doubled())
    first.step(columns(0, dist.get_rank(), dist.get_world_size()), 0, 0.0)
    return reports, {name: mean / (1 - 0.9) for name, (mean, _) in moments(first.engine).items()}


def test_a_method_may_call_the_objective_itself_and_report(ranks):
    plain, _ = ranks(2).run(gradients, Case(training=FREE), "twice")[0]
    for reports, found in ranks(2).run(doubled):
        # two micro-batches per step, and 3, 3 and 1 steps per report
        assert [report["calls"] for report in reports] == [6, 6, 2]
        for name, gradient in plain.items():
            torch.testing.assert_close(found[name], 2 * gradient, rtol=1e-4, atol=1e-6)


def test_dropout_differs_between_steps_and_passes():
    seeds = {pass_seed(seed, step, number) for seed in (0, 1, -1) for step in range(50) for number in range(8)}
    assert len(seeds) == 3 * 50 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
