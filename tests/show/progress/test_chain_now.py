"""Tests the progress of running chains and searches."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import ensure
from adapt.runner.lock import locked
from adapt.runner.store import Store, logged
from adapt.show.progress.chain_now import ChainNow, TrialNow, TrialsNow, chain_now, last_report
from adapt.show.renderers import show_blocks
from adapt.terminal.console import log
from adapt.train.held_time import HeldLog, add_seconds, holding
from adapt.train.training_run import METRICS_FILE
from tests.runner.toys import Toy, idle
from tests.show.progress.test_goals import Goal

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
    assert now.waiting[0] == ("dapt[biomed]", "waits for train biomed, which is running")


def test_the_goodput_of_a_running_training_is_shown(store: Store) -> None:
    report(store)
    log = HeldLog(folder_of(store, TRAIN), devices=2)
    with locked(folder_of(store, TRAIN)), holding(folder_of(store, TRAIN), 2, waits=False):
        log.begin(0)
        add_seconds("steps", 45.0)
        add_seconds("data wait", 15.0)
        log.record(4)
        (table,) = (block for block in chain_now(GOALS, store).blocks() if getattr(block, "title", "")[:7] == "Goodput")
    assert table.rows == [["biomed", "running", "2 min 00 s", "75.0%", "data wait 25.0%"]]


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
    assert now.trainings == []  # The training is finished, so the report shows its loss curve.
    assert (now.counts["finished"], now.later) == (1, ["tuned"])


def test_a_stage_without_reports_is_told_by_its_log(store: Store) -> None:
    with locked(folder_of(store, OTHER)), logged(folder_of(store, OTHER)):
        log("seed 3 of 5")
        now = chain_now(GOALS, store)
    assert now.running == [("finetune other", "seed 3 of 5")]


@dataclass
class Training:
    """Replaces a stage, with the attributes that `chain_now` reads."""

    name: str
    kind: str = "train"
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def needed(self) -> list[Any]:
        return [*self.inputs.values()]

    @property
    def key(self) -> str:
        return self.name * 8


TOLD = {"step": 10, "steps": 30, "loss": 2.5, "learning_rate": 5e-4, "tokens_per_s": 999.6, "data_wait_share": 0.0}
SAID = "step 10/30  loss 2.500  lr 5.00e-04  1,000 tokens/s  data wait 0.0%  {}ETA 4.0 s"


def looked(stage: Any, store: Store) -> ChainNow:
    return chain_now([Goal("entry", "entry", stage)], store)


@pytest.mark.parametrize(("waits", "shown"), [(0.1, ""), (0.62, "core wait 62%  ")])
def test_a_running_training_shows_its_last_whole_report(tmp_path: Path, waits: float, shown: str) -> None:
    store, training = Store(tmp_path), Training("first")
    folder = store.folder("train", "first", training.key)
    folder.mkdir(parents=True)
    reports = [{**TOLD, "step": 5}, {**TOLD, "eta_s": 4, "core_wait_share": waits}]
    (folder / METRICS_FILE).write_text("\n".join(map(json.dumps, reports)) + '\n{"step": 15, "los')
    second = Training("second", inputs={"start.training": training})
    assert looked(second, store).running == []  # No process holds the lock of a stage, so nothing is running.
    with locked(folder, lambda holder: None):
        assert looked(second, store).running == [("train first", SAID.format(shown))]


def test_a_stage_without_reports_says_nothing(tmp_path: Path) -> None:
    store, stage = Store(tmp_path), Training("first", kind="prepare")
    folder = store.folder("prepare", "first", stage.key)
    folder.mkdir(parents=True)
    with locked(folder, lambda holder: None):
        assert looked(stage, store).running == [("prepare first", "")]


def test_a_running_search_shows_its_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, stage = Store(tmp_path), Training("first", kind="search")
    folder = store.folder("search", "first", stage.key)
    folder.mkdir(parents=True)
    trials = [TrialNow(3, "epochs 8", "train (2 of 6 stages)"), TrialNow(1, "epochs [2]", "", [0.5])]
    TrialsNow(25, 1, 0, ["dev_score"], trials).save(folder)
    # No process holds the lock, so the search was killed and is not running.
    assert looked(stage, store).searches == []
    with locked(folder, lambda holder: None):
        show_blocks([trials.table(name) for name, trials in looked(stage, store).searches])
    said = capsys.readouterr().err
    assert "first: 1 of 25 trials have ended" in said
    rows = [line.replace("│", " ").split() for line in said.splitlines() if line.startswith("│")]
    assert rows == [["3", "train", "(2", "of", "6", "stages)", "epochs", "8"], ["1", "0.5000", "epochs", "[2]"]]


def test_reports_without_step_numbers_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"step": 1, "steps": 2}\n{"loss": 1.0}\n')
    assert last_report(tmp_path) == "step 1/2"
