"""Tests measurements between steps: they do not change a run, and end it at the right step, also after a resume."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adapt.config import Config, EvaluationConfig, StopConfig, TrainingConfig
from adapt.corpus.token_shards import write_shard
from adapt.evaluate.losses import Heldout, TrainingLosses, heldout_losses
from adapt.objective import masking
from adapt.train.loop import Loop
from adapt.train.points import Place, Points
from adapt.train.training_run import Progress
from tests.train.toy import LENGTH, VOCABULARY, Case, Objective, Tokenizer, build, feed

STEPS = 6
TRAINING = {"log_interval_steps": 2, "checkpoint_interval_steps": 3}
EVALUATION = EvaluationConfig(interval_steps=2, sequence_length=LENGTH, micro_batch=2, mask_fraction=0.4)
FALLING = {0: 3.0, 2: 3.05, 4: 3.2, 6: 3.3}


class Ran(NamedTuple):
    """Outcome of a training run on one rank."""

    weights: dict[str, torch.Tensor]
    exported: dict[str, torch.Tensor]
    progress: Progress
    reports: list[dict[str, Any]]
    has_ended: bool


@dataclass
class Told:
    """A measurement that returns given losses by step, and draws random numbers, as a model with dropout does."""

    progress: Progress
    losses: Mapping[int, float]
    steps: list[int] = field(default_factory=list)

    def __call__(self, engine: Any) -> dict[str, float]:
        assert not any(module.training for module in engine.modules())
        torch.rand(3)
        self.steps.append(self.progress.step)
        return {"general_loss": self.losses[self.progress.step], "domain_loss": 5 - self.progress.step / 10}


def held_out(folder: Path) -> None:
    """Writes held-out documents. Two of them are longer than a row."""
    draw = np.random.default_rng(7)
    lengths = [4, 9, 12, 30, 7, 12, 5, 20, 11]
    documents = [draw.integers(5, VOCABULARY, length) for length in lengths]
    write_shard(folder / "heldout-00000.arrow", documents, VOCABULARY, sizes=[3 * length for length in lengths])


def losses_at(loop: Loop, folder: Path) -> TrainingLosses:
    place = Place(
        Config(training=TrainingConfig(sequence_length=LENGTH), evaluation=EVALUATION),
        Tokenizer(),
        loop.engine.device,
        micro_batch=2,
        rank=dist.get_rank(),
        world=dist.get_world_size(),
    )
    return TrainingLosses(place, {"domain": str(folder)}, {"domain": 9})


def train(
    case: Case, folder: Path | None = None, told: Mapping[int, float] | None = None, kill: int | None = None
) -> Ran:
    """Trains on the calling rank.

    Args:
        case: settings of the run. If it is saved or loaded, `case.save` and `case.load` are folders of a checkpoint.
        folder: folder of held-out documents to measure. If None, nothing is measured.
        told: losses that are measured, by step.
        kill: step after which the run is stopped.
    """
    loop = build(case)
    progress = Progress(**loop.engine.load(case.load)) if case.load else Progress()
    measures: list[Any] = [losses_at(loop, folder)] if folder else []
    measures += [Told(progress, told)] if told else []
    points = Points(loop.engine, measures, 2, loop.training, loop.objective, loop.method) if measures else None
    if points and case.load:
        points.resume(progress, case.load)
    loop = replace(loop, points=points)
    reports: list[dict[str, Any]] = []

    def save(reached: Progress) -> None:
        if case.save and reached.step == case.save_after:
            loop.engine.save(case.save, vars(replace(reached)))
            if points:
                points.save(case.save)
            dist.barrier()
        if reached.step == kill:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        loop.run(feed(progress.step, case.steps, case.global_batch), progress, reports.append, save)
    exported = points.result(progress) if points else loop.engine.full_state()
    return Ran(loop.engine.full_state(), exported, progress, reports, loop.has_ended)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(("zero_stage", "is_padded"), [(0, False), (1, False), (2, True), (3, True)])
def test_weights_do_not_depend_on_measurements(ranks, tmp_path: Path, zero_stage: int, is_padded: bool) -> None:
    held_out(tmp_path)
    case = Case(zero_stage, STEPS, dropout=0.1, is_padded=is_padded, training=TRAINING)
    plain, measured = (ranks(2).run(train, case, folder)[0] for folder in (None, tmp_path))
    assert equal(plain.weights, measured.weights)
    assert [point["step"] for point in measured.progress.points] == [0, 2, 4, 6]
    assert measured.progress.evaluation_seconds > 0


def alone(folder: Path, is_padded: bool) -> list[float]:
    """Measures the initial model on the beginnings of held-out documents, like the evaluation before training."""
    from tests.train.toy import model

    objective = masking.make(replace(Objective().config, kind="mlm"), Tokenizer(), 0)
    sample = Heldout.sample(folder, EVALUATION).beginnings(9, LENGTH)
    toy = model(is_padded=is_padded)
    losses, counts = heldout_losses(toy, objective, sample, EVALUATION, torch.device("cpu"))
    return [float(losses.sum() / counts.sum())]


@pytest.mark.parametrize(("world", "zero_stage", "is_padded"), [(1, 0, False), (2, 0, False), (2, 3, True)])
def test_losses_equal_those_before_training(
    ranks, tmp_path: Path, world: int, zero_stage: int, is_padded: bool
) -> None:
    held_out(tmp_path)
    ran = ranks(world).run(train, Case(zero_stage, 2, is_padded=is_padded), tmp_path)
    (expected,) = alone(tmp_path, is_padded)
    for each in ran:
        first = each.progress.points[0]["figures"]
        assert first["domain_loss"] == pytest.approx(expected, rel=1e-5)
        assert first["domain_bits_per_byte"] == pytest.approx(expected / np.log(2) / 3, rel=1e-5)


def test_figures_are_reported_at_their_step(ranks) -> None:
    case = Case(steps=5, training={"log_interval_steps": 3, "checkpoint_interval_steps": 9})
    (ran,) = ranks(1).run(train, case, None, dict.fromkeys(range(6), 3.0))
    told = {report["step"]: report for report in ran.reports}
    assert [step for step, report in told.items() if "eval_general_loss" in report] == [0, 2, 4, 5]
    assert [step for step, report in told.items() if "loss" in report] == [3, 5]
    assert all(report["steps"] == 5 for report in ran.reports)


BUDGET = {**TRAINING, "stop": StopConfig(metric="general_loss", rise=0.1)}


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_a_budget_ends_the_training_and_exports_the_last_model_within(ranks, zero_stage: int) -> None:
    case = Case(zero_stage, STEPS, dropout=0.1, training={**TRAINING, "checkpoint_interval_steps": 2})
    (within, _) = ranks(2).run(train, case, None, None, 2)
    assert within.progress.step == 2
    stopping = replace(case, training={**case.training, "stop": BUDGET["stop"]})
    ended = ranks(2).run(train, stopping, None, FALLING)
    assert [(each.progress.step, each.has_ended) for each in ended] == [(4, True)] * 2
    assert equal(ended[0].exported, within.weights)
    assert not equal(ended[0].exported, ended[0].weights)
    assert ended[1].exported == {}


@pytest.mark.parametrize("saved", [3, 4])
def test_a_resumed_training_ends_in_the_same_way(ranks, tmp_path: Path, saved: int) -> None:
    """The checkpoint of the resumed run was written before or after the measurement that ends the run."""
    case = Case(steps=STEPS, dropout=0.1, training={**BUDGET, "checkpoint_interval_steps": 1})
    whole = ranks(2).run(train, case, None, FALLING)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    ranks(2).run(train, replace(case, save=folder, save_after=saved), None, FALLING, saved)
    resumed = ranks(2).run(train, replace(case, load=folder), None, FALLING)
    for one, other in zip(whole, resumed, strict=True):
        assert other.progress.step == one.progress.step == 4
        assert equal(one.exported, other.exported)
        assert one.progress.points == other.progress.points


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_the_best_step_is_exported_also_by_a_resumed_training(ranks, tmp_path: Path, zero_stage: int) -> None:
    """The checkpoint was written after the best step, and also contains the weights of the best step."""
    losses = {0: 3.0, 2: 2.8, 4: 2.9, 6: 2.8}
    every = {**TRAINING, "checkpoint_interval_steps": 1}
    case = Case(zero_stage, STEPS, dropout=0.1, training={**every, "keep": "best", "keep_metric": "general_loss"})
    best = ranks(2).run(train, replace(case, training=every), None, None, 2)[0].weights
    whole = ranks(2).run(train, case, None, losses)[0]
    assert whole.progress.step == STEPS
    assert equal(whole.exported, best)
    assert not equal(whole.exported, whole.weights)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    ranks(2).run(train, replace(case, save=folder, save_after=3), None, losses, 3)
    resumed = ranks(2).run(train, replace(case, load=folder), None, losses)[0]
    assert equal(resumed.exported, whole.exported)
    assert equal(resumed.weights, whole.weights)
    assert resumed.progress.points == whole.progress.points
