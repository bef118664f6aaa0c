"""Tests that a training run that is killed within a step and started again gives the weights of an undisturbed run.

The tests cover phases, documents as padded rows, replaced-token detection, ramps of batch size and row length, and
training runs that measurements end early or that export the model of an earlier step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import ray.train
import torch

from adapt.config import Config, StopConfig, TrainingConfig
from adapt.corpus.sample_order import Mixture
from adapt.corpus.shard_batches import Feed
from adapt.corpus.token_shards import write_shard
from adapt.method.base import Method, TrainingEngine
from adapt.model.locate import Pretrained
from adapt.runner import Store
from adapt.runner.record import load_record
from adapt.stage.training_plan import part_of
from adapt.train import worker
from adapt.train.checkpoints.branch import start_from_phase
from adapt.train.checkpoints.checkpoint import Checkpoints
from adapt.train.engine import Engine
from adapt.train.loop import Loop
from adapt.train.points import Points
from adapt.train.stopping import as_points, described, early_end, kept
from adapt.train.training_run import TrainingRun
from tests.train.checkpoints.test_branch import finished, sealing, stage, stored
from tests.train.test_two_towers import objective, pair
from tests.train.toy import LENGTH, VOCABULARY, Case, build, feed, settings

RUN = "run"
"""Name of the run in the folder of its stage."""


class Dying(Method):
    """Plain training whose process kills itself between the backward pass and the update of a step."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self.step = step

    def before_step(self, engine: TrainingEngine, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Killed:
    """A training run that is killed in step `dies` and resumes at step `resumes`. Both count from 0."""

    loop: Callable[[Method], Loop]
    dies: int = 3
    resumes: int = 2
    corpus: Path | None = None
    """Folder of the text. If None, the run trains on the random batches of tests/train/toy.py."""


def train(of: Killed, folder: Path, dies: bool, name: str = RUN) -> tuple[dict[str, torch.Tensor], int]:
    """Trains on the calling rank. Returns the weights, and the step at which the training started."""
    loop = of.loop(Dying(of.dies if dies else None))
    run_folder = folder / "checkpoints" / name
    ray.train.report = stored(run_folder)
    states = Checkpoints(loop.engine, loop.method, run_folder, sealing(folder, name))
    progress = states.load()
    begun = progress.step
    with ramped_batches(loop, of.corpus, begun) if of.corpus else plain_batches(loop, begun) as batches:
        loop.run(batches, progress, lambda _: None, states.save)
    return loop.engine.full_state(), begun


@contextmanager
def plain_batches(loop: Loop, first: int) -> Iterator[Any]:
    yield feed(first, loop.steps)


@contextmanager
def read_here(feed: Feed) -> Iterator[Any]:
    yield feed.read()


@contextmanager
def ramped_batches(loop: Loop, corpus: Path, first: int) -> Iterator[Any]:
    """Opens the batches of a worker. In a job, Ray Data reads the corpus; here, this process reads it."""
    config = Config(training=loop.training)
    part = part_of(config, lambda length: Mixture.of([-(-TOKENS // length)], 3))
    job = TrainingRun(config, "", "", (str(corpus),), part.stretches, Pretrained(corpus, corpus), loop.steps)
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    with (
        patch.object(ray.train, "get_context", lambda: context),
        patch.object(worker, "streamed", read_here),
        worker.open_feed(job, first, loop.objective) as batches,
    ):
        yield batches


def check(ranks: Any, of: Killed, whole: Path, killed: Path) -> None:
    expected, _ = ranks(1).run(train, of, whole, False)[0]
    with pytest.raises(EOFError):  # the process has ended, so it does not answer
        ranks(1).run(train, of, killed, True)
    weights, begun = ranks(1).run(train, of, killed, False)[0]
    assert begun == of.resumes
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())


OFTEN = {"checkpoint_interval_steps": 2, "schedule": "constant", "warmup_steps": 0, "learning_rate": 1e-3}
PADDED = Case(is_padded=True, dropout=0.2, training=OFTEN)
RAMPED = Case(
    steps=7,
    dropout=0.2,
    training={
        **OFTEN,
        "checkpoint_interval_steps": 3,
        "global_batch_size": 8,
        "sequence_length": LENGTH,
        "max_steps": 7,
        "batch_ramp": [(32, 4)],
        "length_ramp": [(128, 4)],
    },
)
"""Steps 0 and 1 have 4 rows of 4 tokens, steps 2 to 4 have 8 rows of 4, and steps 5 and 6 have 8 rows of 12."""
TOKENS = 400


def padded_loop(method: Method) -> Loop:
    return build(PADDED, method=method)


def ramped_loop(method: Method) -> Loop:
    return build(RAMPED, method=method)


def detecting_loop(method: Method) -> Loop:
    training = settings(**OFTEN)
    engine = Engine(pair("disentangled"), training, 0, "fp32", 2, 4)
    return Loop(engine, objective(), method, training, 2, 4, seed=5)


def phase_loop(method: Method, first: int = 2, last: int = 6) -> Loop:
    return replace(build(Case(steps=last, dropout=0.2, training=OFTEN), method=method), first_step=first)


def first_phase(method: Method) -> Loop:
    return phase_loop(method, 0, 2)


@pytest.mark.parametrize("loop", [padded_loop, detecting_loop])
def test_padded_rows_and_replaced_tokens(ranks: Any, tmp_path: Path, loop: Callable[[Method], Loop]) -> None:
    check(ranks, Killed(loop), tmp_path / "train" / "whole-1", tmp_path / "train" / "killed-1")


def test_the_second_phase(ranks: Any, tmp_path: Path) -> None:
    made = stage(TrainingConfig(**OFTEN, max_steps=2), phase={})
    folder = finished(Store(tmp_path), made, 2)
    ranks(1).run(train, Killed(first_phase), folder, False, made.key[:8])
    record = load_record(folder)
    assert record
    folders = [tmp_path / "train" / name for name in ("whole-1", "killed-1")]
    for each in folders:
        start_from_phase(record, 2, each / "checkpoints" / RUN, tmp_path)
    check(ranks, Killed(phase_loop, dies=5, resumes=4), *folders)


def test_ramps_of_batch_size_and_length(ranks: Any, tmp_path: Path) -> None:
    """The ramps give three shapes of batches. Training resumes in the middle of the second shape."""
    draw = np.random.default_rng(1)
    cuts = np.sort(draw.choice(np.arange(1, TOKENS), 60, replace=False))
    documents = [part.tolist() for part in np.split(draw.integers(5, VOCABULARY, TOKENS), cuts)]
    (tmp_path / "corpus").mkdir()
    write_shard(tmp_path / "corpus" / "train-000000-000000.arrow", documents, VOCABULARY)
    of = Killed(ramped_loop, dies=4, resumes=3, corpus=tmp_path / "corpus")
    check(ranks, of, tmp_path / "train" / "whole-1", tmp_path / "train" / "killed-1")


BEST = [StopConfig(metric="domain_loss", patience=3)]
BUDGET = [StopConfig(metric="general_loss", rise=0.5)]


def measured(
    folder: Path, dies: int | None, changes: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, Any], int]:
    """Trains on the calling rank with measurements after each step. The domain loss is lowest at step 2.

    Returns:
        The exported weights, the report on the measurements, and the step at which the training started.
    """
    case = Case(steps=9, dropout=0.2, training={**OFTEN, **changes})
    loop, name = build(case, method=Dying(dies)), RUN
    run_folder = folder / "checkpoints" / name
    ray.train.report = stored(run_folder)

    def measure(_: Any) -> dict[str, float]:
        return {"domain_loss": 3.0 + abs(progress.step - 2), "general_loss": 2.0 + 0.15 * progress.step}

    points = Points(loop.engine, [measure], 1, loop.training, loop.objective, loop.method)
    states = Checkpoints(loop.engine, loop.method, run_folder, sealing(folder, name), points=points)
    progress = states.load()
    begun = progress.step
    replace(loop, points=points).run(feed(begun, case.steps), progress, lambda _: None, states.save)
    weights, seen = points.result(progress), as_points(progress.points)
    said = [*described(early_end(seen, loop.training), seen), *kept(seen, loop.training)]
    return weights, {"points": seen, "said": said, "steps": progress.step, **points.figures()}, begun


@pytest.mark.parametrize(
    ("changes", "dies", "resumes", "steps", "exported"),
    [
        ({"keep": "best"}, 5, 4, 9, 2),
        ({"keep": "best", "stop": BEST}, 3, 2, 5, 2),
        ({"stop": BUDGET}, 3, 2, 4, 3),  # the measurement that exceeds the limit comes after the resume
    ],
)
def test_the_exported_step_and_its_report(
    ranks: Any, tmp_path: Path, changes: dict[str, Any], dies: int, resumes: int, steps: int, exported: int
) -> None:
    folders = [tmp_path / "train" / name for name in ("whole-1", "killed-1")]
    expected, report, _ = ranks(1).run(measured, folders[0], None, changes)[0]
    assert (report["steps"], report["exported_step"]) == (steps, exported)
    assert report["said"]
    with pytest.raises(EOFError):
        ranks(1).run(measured, folders[1], dies, changes)
    weights, again, begun = ranks(1).run(measured, folders[1], None, changes)[0]
    assert begun == resumes
    assert again == report
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
