"""Trainings that are tracked: their reports, a crash, and what is left of them."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from adapt.config import Config, TrackingConfig, TrainingConfig
from adapt.corpus.batches.mixture import Mixture
from adapt.model.locate import Pretrained
from adapt.train.job import TrainingRun
from adapt.train.tracking.track import Trackers

KEY = "0a1b2c3d" * 8
API_KEY = "5ec4e75ec4e75ec4e75ec4e75ec4e75ec4e75ec4"


def a_job(folder: Path, key: str = KEY, **tracking: str) -> TrainingRun:
    config = Config("tracked", training=TrainingConfig(learning_rate=0.25), tracking=TrackingConfig(**tracking))
    mixture, pretrained = Mixture.of([8], 0), Pretrained(folder, folder, False)
    return TrainingRun(config, key, str(folder / "train"), ("corpus",), mixture, pretrained, 8)


def report(step: int, attempt: int) -> dict[str, Any]:
    return {"step": step, "steps": 8, "loss": attempt + 1 / step, "learning_rate": 1e-4}


def train(job: TrainingRun, first: int, last: int, attempt: int = 1) -> None:
    """Reports steps as a run that starts from the checkpoint of step `first` does."""
    Path(job.folder).mkdir(exist_ok=True)
    with Trackers(job, first, active=True) as trackers:
        for step in range(first + 1, last + 1):
            trackers.log(report(step, attempt))


class CrashError(Exception):
    pass


def crash(job: TrainingRun, last: int) -> None:
    """Reports steps up to `last`, then fails."""
    with suppress(CrashError), Trackers(job, 0, active=True) as trackers:
        for step in range(1, last + 1):
            trackers.log(report(step, 1))
        raise CrashError


RESUMED = [report(step, 1) for step in range(1, 5)] + [report(step, 2) for step in range(5, 9)]
"""What is left of a run that reached step 6, when it was resumed at step 4 and reached the end."""
