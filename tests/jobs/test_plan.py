"""Tests the plans of jobs, which show the stages to run. Commands print plans without starting Ray."""

import json
from pathlib import Path

import pytest

from tests.jobs.commands import HEAVY, STAGES, Run, finish, last_line

pytestmark = pytest.mark.heavy
SEQUENCE = ["sequence-one", "sequence-two", "all"]


def test_a_plan_shows_the_stages_and_loads_no_slow_modules(run: Run, job: list[str], tmp_path: Path) -> None:
    ran = run("chain.py", "plan", *job, "--resources.price_per_device_hour=2")
    assert ran.code == 0, ran.err
    stages, ahead = ran.err.split("Forecast for the training")
    rows = [row.split("│")[1:3] for row in stages.splitlines() if row.startswith("│") and row.split("│")[1].strip()]
    assert [(stage.strip(), state.strip()) for stage, state in rows] == [(stage, "will run") for stage in STAGES]
    figures = [row.split("│")[1].strip() for row in ahead.splitlines() if row.startswith("│")]
    assert [name for name in figures if name] == [
        *("parameters", "memory per device", "micro-batch", "work", "device time", "cost"),
    ]
    assert ran.out.count("\n") == 1
    assert last_line(ran) == {
        "stage": "plan",
        "path": str(tmp_path / "runs"),
        "metrics": {"done": 0, "stages": len(STAGES)},
    }
    assert ran.loaded & HEAVY == set()


@pytest.mark.parametrize(
    ("name", "more", "trainings", "stages"),
    [
        ("sequence", [], SEQUENCE, {"importance": 0, "train": 2}),
        ("sequence", ["--method.kind=das"], SEQUENCE, {"importance": 3, "train": 2}),
        ("similarity", [], [], {"train": 0}),
    ],
)
def test_the_plan_of_another_job(
    run: Run, job: list[str], tmp_path: Path, name: str, more: list[str], trainings: list[str], stages: dict[str, int]
) -> None:
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": "another text of some words"}) + "\n")
    sources = "[{name: one, paths: corpus.jsonl}, {name: two, paths: other.jsonl}]"
    settings = [each for each in job if "corpus" not in each]
    ran = run("chain.py", "plan", f"--job={name}", f"--corpus.sources={sources}", *settings, *more)
    assert ran.code == 0, ran.err
    assert f"This is what `dontstop {name}` would run." in ran.err
    planned, _, ahead = ran.err.partition("Trainings that will run")
    rows = [row.split("│")[1].strip() for row in planned.splitlines() if row.startswith("│")]
    assert {stage: rows.count(stage) for stage in stages} == stages
    assert [row.split("│")[1].strip() for row in ahead.splitlines() if row.startswith("│")] == trainings
    assert ran.loaded & HEAVY == set()


def test_a_plan_after_a_run_says_what_changed(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job, tmp_path, monkeypatch)
    assert last_line(run("chain.py", "plan", *job))["metrics"] == {"done": 6, "stages": 6}
    ran = run("chain.py", "plan", *job)
    assert "Forecast for the training" not in ran.err  # No stage remains, so nothing is forecast.
    ran = run("chain.py", "plan", *job, "--training.learning_rate=1e-4")
    assert last_line(ran)["metrics"] == {"done": 3, "stages": 6}
    assert ran.err.count("training.learning_rate: 0.0005 -> 0.0001") == 1
    assert ran.err.count("input training: ") == 1  # the plan shows the training run as an input of the export
    assert ran.err.count("input start.training: ") == 1  # the plan shows the training run as an input of the evaluation
