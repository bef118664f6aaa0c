"""A search whose trials are judged on their way, with real trainings, of which a worker is killed."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import drive
from tests.drive import Jobs
from tests.samples import labelled, write

jobs = pytest.fixture(drive.jobs)
RATES = [1.0e-2, 1.0e-5, 2.0e-5]
"""The first is far better than the others, which are stopped."""


def search(folder: Path, model: Path) -> list[str]:
    """The arguments of a search by ASHA with turns of 4 and 12 steps, one trial after another."""
    space = folder / "space.yaml"
    space.write_text(f"training.learning_rate: {RATES}\n")
    splits = [
        f"--task.{split}={write(folder / f'{split}.jsonl', labelled(24, len(split)))}" for split in ("train", "dev")
    ]
    judged = {"scheduler": "asha", "turns": 2, "reduction": 3, "searcher": "grid", "samples": 3, "at_once": 1}
    training = {
        "schedule": "wsd",
        "warmup_steps": 1,
        "cooldown_fraction": 0.25,
        "max_steps": 12,
        "global_batch_size": 4,
        "sequence_length": 64,
    }
    return [
        f"--space={space}",
        "--job=tapt",
        f"--model.path={model}",
        *splits,
        f"--task.test={folder / 'none.jsonl'}",
        "--tapt.batch_examples=null",
        "--evaluation.sequence_length=64",
        "--tune.objectives=[losses.domain.after]",
        "--tune.fresh_seeds=[]",
        *(f"--tune.{name}={value}" for name, value in judged.items()),
        *(f"--training.{name}={value}" for name, value in training.items()),
    ]


@pytest.mark.slow
def test_the_best_trial_goes_on_from_its_branch_also_where_its_worker_is_killed(
    jobs: Jobs, tiny_bert: Path, tmp_path: Path
) -> None:
    job = jobs.start(tmp_path / "one", search(tmp_path, tiny_bert), "tune.py")
    job.until(lambda: "trial 0: losses.domain.after" in job.err)
    workers: list[psutil.Process] = []
    job.until(lambda: bool(workers.extend(job.workers()) or workers))
    workers[0].kill()
    record = json.loads((Path(job.result()["path"]) / "stage.json").read_text())
    rows: list[dict[str, Any]] = record["metrics"]["trials"]
    assert [(row["steps"], sorted(map(int, row["turns"])), row["error"]) for row in rows] == [
        (12, [12], ""),  # as it is
        (12, [4, 12], ""),
        (4, [4], ""),
        (4, [4], ""),
    ]
    assert record["metrics"]["best"] in (0, 1)
    (begun,) = [line for line in job.err.splitlines() if "where its cooldown began" in line]
    assert "train: starts at step 3 of tapt-" in begun
