"""Tests that loss spikes are found, and that a skipped step changes nothing, at any ZeRO stage and after a resume."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adapt.config import Config, TrainingConfig
from adapt.corpus.sample_order import Mixture
from adapt.corpus.token_shards import write_shard
from adapt.method.base import Method, TrainingEngine
from adapt.model.locate import Pretrained
from adapt.stage.training_plan import training_what
from adapt.support.errors import TrainingError
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from adapt.train.model_options import LossScale
from adapt.train.schedule import learning_rate
from adapt.train.spikes import SPIKES_FILE, Spike, SpikeText, SpikeWatch, limit
from adapt.train.training_run import Progress, Stretch, TrainingRun
from tests.train.toy import Case, Objective, build, feed, moments

SKIPS = {"on_spike": "skip"}


def test_the_limit_is_the_median_plus_scaled_absolute_deviations() -> None:
    values = np.random.default_rng(0).normal(3, 0.5, 99)
    deviation = 1.4826 * np.median(np.abs(values - np.median(values)))
    assert limit(values.tolist(), 6.0) == pytest.approx(np.median(values) + 6 * deviation)
    assert limit([2.0] * 9, 5.0) == pytest.approx(2.0 + 5 * 0.02)
    assert limit([*values.tolist(), 1e9, 1e9], 6.0) == pytest.approx(limit(values.tolist(), 6.0), rel=0.05)


def watch(progress: Progress, **changes: Any) -> SpikeWatch:
    training = TrainingConfig(**{"on_spike": "skip", "max_spikes": 2, **changes})
    return SpikeWatch(training, progress, lambda step: f"the text of step {step}")


def test_values_far_above_the_window_are_spikes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapt.train.spikes.WINDOW", 8)
    progress = Progress()
    looks = watch(progress)
    values = [9.0, 2.0, 2.1, 1.9, 2.0, 7.0, 2.0, 0.1]
    found = [looks.judge(step, value, 1.0) for step, value in enumerate(values, start=1)]
    # the value 9.0 came too early to count, and low values are not spikes
    assert [spike.step for spike in found if spike] == [6]
    assert found[5]
    assert "its loss 7 is above" in found[5].why
    assert progress.skipped == [6]
    assert progress.recent_losses == values
    high_norm = looks.judge(9, 2.0, 50.0)
    assert high_norm
    assert high_norm.why.startswith("its gradient norm 50 is above")


def test_values_that_are_not_finite_are_spikes_from_the_first_step_and_do_not_enter_the_window() -> None:
    progress = Progress()
    spike = watch(progress).judge(1, math.nan, math.inf)
    assert spike
    assert spike.why == "its loss is nan and its gradient norm is inf"
    assert (progress.recent_losses, progress.recent_norms, progress.skipped_in_a_row) == ([], [], 1)


def test_too_many_spikes_in_a_row_end_the_run() -> None:
    looks = watch(progress := Progress())
    for step, loss in enumerate([math.nan, math.nan, 2.0, math.nan, math.nan], start=1):
        looks.judge(step, loss, 1.0)
    with pytest.raises(TrainingError, match=r"2 steps before it were skipped too.*the text of step 6") as caught:
        looks.judge(6, math.nan, 1.0)
    assert "training.max_spikes" in caught.value.fix
    assert progress.skipped == [1, 2, 4, 5]


def test_stop_ends_the_run_at_the_first_spike_and_names_its_text() -> None:
    with pytest.raises(TrainingError, match="step 1 is a spike: its loss is nan; text of the step: the text of step 1"):
        watch(Progress(), on_spike="stop").judge(1, math.nan, 1.0)


def test_a_run_that_stopped_has_the_key_of_one_that_skips() -> None:
    plain, stop, skip = (training_what(TrainingConfig(on_spike=on, max_spikes=3)) for on in (None, "stop", "skip"))
    assert stop == skip
    assert stop.keys() - plain.keys() == {"on_spike", "spike_window_steps", "spike_deviations"}


@pytest.mark.parametrize(("first", "is_kept"), [(0, True), (3, True), (4, False)])
def test_a_phase_is_not_judged_by_the_steps_of_the_phase_before_it(first: int, is_kept: bool) -> None:
    """A run that continues within its phase, or from a shorter run (`first` is 0), keeps the window."""
    progress = Progress(step=4, recent_losses=[2.0] * 128, recent_norms=[1.0] * 128, skipped_in_a_row=2, skipped=[3, 4])
    nothing = cast(Any, None)
    loop = Loop(nothing, nothing, nothing, TrainingConfig(on_spike="skip"), 1, 9, 0, first_step=first)
    looks = loop.spike_watch(progress)
    assert looks
    assert bool(looks.judge(5, 3.0, 1.5)) == is_kept
    assert progress.recent_losses[:-1] == ([2.0] * 127 if is_kept else [])
    assert (progress.skipped_in_a_row, progress.skipped) == ((3, [3, 4, 5]) if is_kept else (0, [3, 4]))


BAD = {3: math.nan, 5: 1e6}
"""Factors by which the loss of one micro-batch of rank 0 is multiplied, keyed by step (from 0)."""


class Poisoned(Objective):
    """Multiplies the loss of the second micro-batch on rank 0 by the factor that BAD has for the step."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.calls = 2 * first  # two micro-batches per step

    def loss(self, module, corrupted):
        step, number = divmod(self.calls, 2)
        self.calls += 1
        factor = BAD.get(step, 1.0) if number == 1 and dist.get_rank() == 0 else 1.0
        return super().loss(module, corrupted) * factor


def state(loop, progress: Progress) -> tuple[Any, ...]:
    return (
        loop.engine.full_state(),
        moments(loop.engine),
        replace(progress, seconds=0, data_wait_seconds=0, device_seconds=0),
    )


@patch("adapt.train.spikes.WINDOW", 4)
@patch("adapt.train.spikes.DEVIATIONS", 20.0)
def spiky(case: Case, folder: Path) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
    """Runs a case with two spikes: uninterrupted, resumed between the spikes, and without the steps of the spikes."""
    whole, progress, reports = build(case, Poisoned()), Progress(), []
    saved = folder / str(case.zero_stage)

    def save(reached: Progress) -> None:
        if reached.step == 4:
            whole.engine.save(saved, asdict(reached))

    whole.run(feed(0, case.steps), progress, reports.append, save)
    resumed = build(case, Poisoned(first=4))
    later = Progress(**resumed.engine.load(saved))
    resumed.run(feed(4, case.steps), later, lambda metrics: None, lambda reached: None)
    without = build(case)
    for step, share in enumerate(feed(0, case.steps)):
        if step not in BAD:
            without.step(share, step, learning_rate(without.training, step, case.steps))
    return state(whole, progress), state(resumed, later), state(without, progress), reports


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_a_skipped_step_changes_nothing_and_a_resumed_run_skips_it_too(ranks, tmp_path: Path, zero_stage: int) -> None:
    (tmp_path / str(zero_stage)).mkdir()
    training = {**SKIPS, "checkpoint_interval_steps": 2, "log_interval_steps": 1}
    case = Case(zero_stage, steps=8, micro_batch=2, training=training)
    for whole, resumed, without, reports in ranks(2).run(spiky, case, tmp_path):
        progress = whole[2]
        assert progress.skipped == [4, 6]
        assert resumed[2] == progress
        for other in (resumed, without):
            for mine, theirs in ((whole[0], other[0]), (whole[1], other[1])):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        assert [report["spikes"] for report in reports] == [0, 0, 0, 1, 1, 2, 2, 2]


def scaled(case: Case) -> tuple[list[int], LossScale | None]:
    """Returns the skipped steps and the final loss scale of a run in fp16."""
    loop, progress = build(case, Poisoned()), Progress()
    loop.run(feed(0, case.steps), progress, lambda metrics: None, lambda reached: None)
    return progress.skipped, loop.engine.scale


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_a_skipped_step_leaves_the_loss_scale_unchanged(ranks, zero_stage: int) -> None:
    skipped, scale = ranks(2).run(scaled, Case(zero_stage, steps=5, precision="fp16", training=SKIPS))[0]
    assert skipped == [4]
    assert scale == LossScale(good_steps=4)


class Norms(Method):
    """Records the gradient norm before each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        self.found.append(cast(Engine, engine).gradient_norm())


def norms(case: Case) -> list[tuple[float, float]]:
    """Returns for each step the gradient norm before the step, and the norm that the step itself computes."""
    loop = build(case, method=(method := Norms()))
    steps = [loop.step(share, step, 1e-3)[2] for step, share in enumerate(feed(0, case.steps))]
    return list(zip(method.found, steps, strict=True))


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_the_norm_before_a_step_is_that_of_the_step(ranks, zero_stage: int) -> None:
    for found in ranks(2).run(norms, Case(zero_stage, steps=2)):
        assert len(found) == 2
        for before, within in found:
            assert before == pytest.approx(within, rel=1e-5)


def test_skipped_steps_do_not_enter_the_mean_loss(ranks) -> None:
    training = {**SKIPS, "checkpoint_interval_steps": 99, "log_interval_steps": 8}
    (report,) = ranks(1).run(one_report, Case(steps=8, micro_batch=4, training=training))[0]
    assert 0 < report["loss"] < 10


@patch("adapt.train.spikes.WINDOW", 4)
@patch("adapt.train.spikes.DEVIATIONS", 20.0)
def one_report(case: Case) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    build(case, Poisoned()).run(feed(0, 8), Progress(), reports.append, lambda reached: None)
    return reports


@pytest.fixture
def job(tmp_path: Path) -> TrainingRun:
    """Returns a run on two prepared texts of ten documents with six tokens each, with rows of four tokens."""
    folders = [tmp_path / "prepare" / name for name in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        write_shard(folder / "train-0.arrow", [list(range(6))] * 10, 100)
    mixture = Mixture.of([15, 15], seed=3)
    stretch = Stretch(0, 5, 6, 4, mixture, 0)
    start = Pretrained(tmp_path, tmp_path, False)
    (tmp_path / "train").mkdir()
    return TrainingRun(Config(), "ab" * 32, str(tmp_path / "train"), tuple(map(str, folders)), (stretch,), start, 5)


def test_the_rows_and_documents_of_a_spike_are_named_and_stored(job: TrainingRun) -> None:
    text = SpikeText(job)
    text.store(Spike(2, math.nan, 7.5, "its loss is nan"))
    (line,) = map(json.loads, (Path(job.folder) / SPIKES_FILE).read_text().splitlines())
    assert (line["step"], line["loss"], line["gradient_norm"]) == (2, None, 7.5)
    places = job.stretches[0].mixture.locate(np.arange(6, 12))
    for number, name in enumerate("ab"):
        rows = sorted(places.rows[places.sources == number].tolist())
        assert line["text"][f"prepare/{name}"]["rows"] == rows
        documents = {(row * 4 // 6, (min(row * 4 + 4, 60) - 1) // 6) for row in rows}
        assert line["text"][f"prepare/{name}"]["documents"] == [list(each) for each in sorted(documents)]
    assert "rows of prepare/a: documents " in text.named(2)


def test_rows_of_a_streamed_corpus_are_numbered_in_their_order(job: TrainingRun) -> None:
    streamed = replace(job, stretches=(), config=Config(training=TrainingConfig(global_batch_size=3)))
    assert SpikeText(streamed).named(4) == "3 rows of the stream"
