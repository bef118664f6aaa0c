"""How far a chain is, as plain values: what runs and what it says, what stopped, what waits."""

import json
from pathlib import Path

import pytest

from adapt.console import log
from adapt.runner import Store, ensure
from adapt.runner.lock import locked
from adapt.runner.stage_log import logged
from adapt.show.progress.now import chain_now
from tests.runner.toys import Toy, idle
from tests.show.progress.test_waiting import Goal

TRAIN = Toy("biomed", "train", idle)
TOP = Toy("biomed", "export", idle, source=TRAIN)
OTHER = Toy("other", "finetune", idle)
GOALS = [Goal("dapt", "dapt[biomed]", TOP), Goal("base", "base", OTHER)]
REPORT = {"step": 4, "steps": 10, "loss": 3.25, "eta_s": 60.0}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def folder_of(store: Store, stage: Toy) -> Path:
    folder = store.folder(stage.kind, stage.name, stage.key)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def report(store: Store) -> None:
    (folder_of(store, TRAIN) / "metrics.jsonl").write_text(json.dumps(REPORT) + "\n" + '{"step": 6, "lo')


def test_a_training_is_told_by_its_last_whole_report(store: Store) -> None:
    report(store)
    with locked(folder_of(store, TRAIN)):
        now = chain_now(GOALS, store)
    assert now.counts == {"finished": 0, "running": 1, "waiting": 1}
    assert now.entries == [["dapt", "0", "1", "0", "biomed"], ["base", "0", "0", "1", ""]]
    assert now.running == [("train biomed", "step 4/10  loss 3.250  ETA 1 min 00 s")]
    assert [(training.name, training.state) for training in now.trainings] == [("biomed", "running")]
    assert now.waiting[0] == ("dapt[biomed]", "waits for train biomed, which runs")


def test_a_training_that_was_killed_has_stopped_and_one_that_ended_has_finished(store: Store) -> None:
    report(store)
    now = chain_now(GOALS, store)
    assert now.running == []
    assert [training.state for training in now.trainings] == ["stopped"]
    ensure(TRAIN, store)
    report(store)
    assert [training.state for training in chain_now(GOALS, store).trainings] == ["finished"]
    ensure(TOP, store)
    now = chain_now(GOALS, store, later=["tuned"])
    assert now.trainings == []  # its curve is in the report now
    assert (now.counts["finished"], now.later) == (1, ["tuned"])


def test_a_stage_without_reports_is_told_by_its_log(store: Store) -> None:
    with locked(folder_of(store, OTHER)), logged(folder_of(store, OTHER)):
        log("seed 3 of 5")
        now = chain_now(GOALS, store)
    assert now.running == [("finetune other", "seed 3 of 5")]
