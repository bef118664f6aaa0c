"""Tests the search stage, its record and its tables."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from adapt.evaluate.measurements import Estimate
from adapt.show.blocks import Block, Cell, Table, TextBlock
from adapt.tuning.confirm import Confirmed, FreshFigure
from adapt.tuning.search_stage import Searched, TrialRow, nondominated
from tests import drive
from tests.drive import Jobs
from tests.runner.made import made_up
from tests.samples import labelled, write
from tests.show.report.fake_studies import Fake

jobs = pytest.fixture(drive.jobs)
SAMPLES = 5
FINALISTS = 2
SPLITS = ("train", "dev")


def search(folder: Path, model: Path) -> list[str]:
    """Returns the arguments of a search with TPE.

    The file of the test split does not exist, so the search fails if it reads the test split.
    """
    folder.mkdir(exist_ok=True)
    space = folder / "space.yaml"
    space.write_text("finetune.learning_rate: {loguniform: [1.0e-4, 1.0e-2]}\nfinetune.dropout: [0.0, 0.1]\n")
    splits = [
        f"--task.{split}={write(folder / f'{split}.jsonl', labelled(16, len(split)))}" for split in ("train", "dev")
    ]
    given = {"finetune.seeds": [0], "finetune.epochs": 1, "tune.samples": SAMPLES, "tune.at_once": 2}
    given |= {"tune.finalists": FINALISTS, "tune.finalist_seeds": [1]}
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
    """Returns the number, values, score on dev and error of each trial, and whether it was a finalist."""
    record = json.loads((Path(found["path"]) / "stage.json").read_text())
    rows = record["metrics"]["trials"]
    return [
        (row["number"], row["values"], row["figures"].get("dev_score"), row["error"], row["is_finalist"])
        for row in rows
    ]


@pytest.mark.slow
def test_a_search_that_is_killed_ends_with_the_same_table(jobs: Jobs, tiny_bert: Path, tmp_path: Path) -> None:
    undisturbed = jobs.start(tmp_path / "one", search(tmp_path / "data", tiny_bert), "tune.py")
    wanted = table(undisturbed.result())
    assert [row[0] for row in wanted] == [*range(SAMPLES + 1)]
    assert all(score is not None and not error for _, _, score, error, _ in wanted)
    assert sum(is_finalist for *_, is_finalist in wanted) == FINALISTS

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
    for process in again.below("ray::_asks")[:1]:  # a worker process of Ray Tune
        process.kill()
    assert table(again.result()) == wanted
    # At least one fine-tuning run had finished before the kill and was not run again.
    assert again.err.count("finetune: done") < SAMPLES + 1 + FINALISTS
    assert status() == {"state": "finished"}


def test_dominated_points_are_left_out() -> None:
    assert nondominated([[1, 3], [2, 2], [3, 1], [3, 3], [2, 3]]) == [0, 1, 2]


def test_of_equal_points_the_first_stays() -> None:
    assert nondominated([[1, 1], [1, 1], [0, 2]]) == [0, 2]


def test_with_one_objective_the_front_is_its_best_point() -> None:
    assert nondominated([[3], [1], [2]]) == [1]


def test_every_point_is_on_the_front_or_beaten_by_one_that_is() -> None:
    draw = random.Random(1)
    points = [[draw.randrange(6) for _ in range(3)] for _ in range(60)]
    front = nondominated(points)
    beats = {
        place: [other for other in front if all(a <= b for a, b in zip(points[other], points[place], strict=True))]
        for place in range(60)
    }
    assert all(beats.values())
    assert all(beats[place] == [place] for place in front)


def trial(number: int, value: float | None, steps: int | None = None) -> TrialRow:
    figures = {} if value is None else {"loss": Estimate(value)}
    return TrialRow(number, {"rate": number / 10} if number else {}, "", figures, steps=steps)


def searched(way: str, *trials: TrialRow) -> Searched:
    return made_up(Searched, job="tapt", objectives={"loss": way}, trials=list(trials), best=2, front=[2])


def is_summary(block: Block) -> bool:
    return isinstance(block, TextBlock) and block.is_summary


def numbers(way: str, *trials: TrialRow) -> list[int]:
    return [row.number for row in searched(way, *trials).in_order()]


def test_the_best_trial_is_on_top_and_failed_ones_come_last() -> None:
    trials = trial(0, 2.0), trial(1, None), trial(2, 1.0), trial(3, 3.0)
    assert numbers("min", *trials) == [2, 0, 3, 1]
    assert numbers("max", *trials) == [3, 0, 2, 1]


def test_a_trial_that_came_further_comes_first() -> None:
    assert numbers("min", trial(0, 2.0, 9), trial(1, 1.0, 3), trial(2, 1.5, 9)) == [2, 0, 1]


def test_trials_are_a_table(tmp_path: Path) -> None:
    record = Fake(tmp_path).record("search", "rates")
    said, table, *lines = searched("min", trial(0, 2.0), trial(1, None), trial(2, 1.0)).blocks(record)
    assert said == TextBlock(
        "Trial 2 has the lowest loss of 3 trials, measured on dev: 1, compared with 2 for your "
        "configuration. Values of the trial: rate 0.2.",
        is_summary=True,
    )
    assert isinstance(table, Table)
    assert table.header == ["trial", "loss", "rate"]
    assert table.rows == [["2*", Cell("1.0000"), "0.2"], ["0", Cell("2.0000"), "unchanged"], ["1", "failed", "0.1"]]
    assert str(record.path / "best.yaml") in str(lines[-1])


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"apparent": 0.25, "gained": 0.1, "selection": 0.15},
            "In dev_score, the best trial was 0.2500 better than your configuration in the search, and is 0.1000 better"
            " with fresh seeds: +0.1500 is the optimism that comes from selecting the best of many trials.",
        ),
        (  # only the best trial keeps the bound
            {"apparent": -0.08, "gained": -0.1, "selection": 0.02},
            "In dev_score, the best trial was 0.0800 worse than your configuration in the search, and is 0.1000 worse"
            " with fresh seeds: +0.0200 is the optimism that comes from selecting the best of many trials.",
        ),
        ({"apparent": 0.25, "gained": 0.1, "selection": None}, None),
        (
            {"apparent": None, "gained": None, "selection": None},
            "Trial 0 (your configuration) failed, so the gain of the best values is not known.",
        ),
    ],
)
def test_the_gain_is_shown_if_selection_is_known(
    tmp_path: Path, known: dict[str, float | None], said: str | None
) -> None:
    failed = known["gained"] is None
    as_it_is = None if failed else Estimate(0.6)
    fresh = {"dev_score": FreshFigure(Estimate(0.7, 0.6, 0.8), as_it_is, None if failed else Estimate(0.1))}
    found = made_up(Confirmed, seeds=[1, 2], fresh=fresh, **known)
    table, *lines = [
        block for block in found.blocks(Fake(tmp_path).record("confirm", "rates")) if not is_summary(block)
    ]
    assert isinstance(table, Table)
    assert table.rows[0][:2] == ["dev_score", Cell("0.7000", "0.6000 to 0.8000")]
    assert table.rows[0][2] == ("failed" if failed else Cell("0.6000"))
    assert lines == ([TextBlock(said)] if said else [])
