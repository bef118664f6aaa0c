"""A search from the command line: nothing of test is read, and one that was killed ends with the same table."""

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import drive
from tests.drive import Jobs
from tests.samples import labelled, write

jobs = pytest.fixture(drive.jobs)
SAMPLES = 5
SPLITS = ("train", "dev")


def search(folder: Path, model: Path) -> list[str]:
    """The arguments of a search of TPE. The test split is not there: what is not there cannot be read."""
    folder.mkdir(exist_ok=True)
    space = folder / "space.yaml"
    space.write_text("finetune.learning_rate: {loguniform: [1.0e-4, 1.0e-2]}\nfinetune.dropout: [0.0, 0.1]\n")
    splits = [
        f"--task.{split}={write(folder / f'{split}.jsonl', labelled(16, len(split)))}" for split in ("train", "dev")
    ]
    given = {"finetune.seeds": [0], "finetune.epochs": 1, "tune.samples": SAMPLES, "tune.at_once": 2}
    options = [f"--{name}={json.dumps(value)}" for name, value in given.items()]
    return [
        f"--space={space}",
        "--job=finetune",
        f"--model.path={model}",
        *splits,
        f"--task.test={folder / 'none.jsonl'}",
        "--tune.searcher=tpe",
        "--tune.fresh_seeds=[]",
        "--training.sequence_length=64",
        "--evaluation.sequence_length=64",
        *options,
    ]


def table(found: dict[str, Any]) -> list[Any]:
    """The trials of a search: values, and what was measured of them on dev."""
    record = json.loads((Path(found["path"]) / "stage.json").read_text())
    rows = record["metrics"]["trials"]
    return [(row["number"], row["values"], row["figures"].get("dev_score"), row["error"]) for row in rows]


@pytest.mark.slow
def test_a_search_that_is_killed_ends_with_the_same_table(jobs: Jobs, tiny_bert: Path, tmp_path: Path) -> None:
    undisturbed = jobs.start(tmp_path / "one", search(tmp_path / "data", tiny_bert), "tune.py")
    wanted = table(undisturbed.result())
    assert [row[0] for row in wanted] == [*range(SAMPLES + 1)]
    assert all(score is not None and not error for _, _, score, error in wanted)

    killed = jobs.start(tmp_path / "two", search(tmp_path / "data", tiny_bert), "tune.py")
    killed.until(lambda: "trial 1: dev_score" in killed.err)
    killed.interrupt(signal.SIGKILL)
    killed.end()

    def status() -> dict[str, Any]:
        arguments = ["status", *search(tmp_path / "data", tiny_bert)]
        return dict(jobs.start(tmp_path / "two", arguments, "tune.py").result()["metrics"])

    stopped = status()
    assert (stopped["state"], stopped["trials"]) == ("stopped", SAMPLES + 1)
    assert stopped["ended"] >= 1
    again = jobs.start(tmp_path / "two", search(tmp_path / "data", tiny_bert), "tune.py")
    fine_tuning: list[psutil.Process] = []
    again.until(lambda: bool(fine_tuning.extend(again.below("ray::_work")) or fine_tuning))
    fine_tuning[0].kill()
    again.until(lambda: "trial 2: dev_score" in again.err)
    for process in again.below("ray::_asks")[:1]:  # a process of Ray Tune's
        process.kill()
    assert table(again.result()) == wanted
    assert again.err.count("finetune: done") < SAMPLES + 1  # what was finished was not run again
    assert status() == {"state": "finished"}
