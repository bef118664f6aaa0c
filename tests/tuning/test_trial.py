"""Trials: what stands for test, what is measured, what is shared. Nothing here trains."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.config import Config, TuneConfig
from adapt.evaluate.results import Estimate
from adapt.job.job_run import Job
from adapt.job.registry import JOBS
from adapt.parse import parse
from adapt.runner.reach import everything
from adapt.tuning.trial import Trial, numbers_of, on_dev, trial_of
from adapt.tuning.values import as_file, named_by_values, settings_of
from tests.job.worlds import sequence_world, task_world


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return task_world(tmp_path, monkeypatch)


def built(name: str, config: Config) -> Trial:
    return trial_of(JOBS[name], on_dev(config))


@pytest.mark.parametrize("name", ["tapt", "finetune"])
def test_a_trial_needs_no_test_split(name: str, config: Config) -> None:
    """What is not there cannot be read."""
    Path("data/test.jsonl").unlink()
    assert built(name, config).runs
    with pytest.raises(Exception, match=r"test\.jsonl"):
        trial_of(JOBS[name], config)


def test_dev_stands_for_test_in_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_dev(sequence_world(tmp_path, monkeypatch))
    assert seen.tasks
    assert all(task.test == task.dev != task.train for task in seen.tasks)


def test_a_model_is_taught_its_tasks_with_every_seed(config: Config) -> None:
    trial = built("tapt", config)
    (runs,) = trial.runs.values()
    assert [run.seed for run in runs] == config.finetune.seeds
    assert {run.start.training for run in runs} == {trial.final.training}  # type: ignore[attr-defined]


def test_nothing_is_taught_that_no_objective_asks_for(config: Config) -> None:
    assert not built("tapt", replace(config, tune=TuneConfig(objectives=["losses.domain.after"]))).runs


def test_a_job_that_fine_tunes_is_measured_by_its_own_runs(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = built("finetune", config)
    assert {run.key for runs in trial.runs.values() for run in runs} == {
        run.key
        for run in trial.final.runs.values()  # type: ignore[attr-defined]
    }


def test_trials_share_what_they_have_in_common(config: Config) -> None:
    other = replace(config, training=replace(config.training, learning_rate=3e-3))
    one, two = ({stage.key: stage.kind for stage in everything([built("tapt", each)])} for each in (config, other))
    shared = [one[key] for key in one.keys() & two.keys()]
    assert {"texts", "prepare", "task", "evaluate"} <= {*shared}
    assert not {"train", "finetune", "export", "trial"} & {*shared}


def test_equal_values_make_one_trial(config: Config) -> None:
    same = named_by_values(config, {"training.learning_rate": config.training.learning_rate})
    assert same.name != config.name
    assert built("tapt", same) == built("tapt", config)


@dataclass(frozen=True)
class Result:
    loss: Estimate
    steps: int
    model: str
    transductive: bool
    general: float | None = None


def test_the_numbers_of_a_result_come_with_their_intervals() -> None:
    found = numbers_of(Result(Estimate(2.0, 1.0, 3.0), 7, "x", True))
    assert {name: (each.value, each.low, each.high) for name, each in found.items()} == {
        "loss": (2.0, 1.0, 3.0),
        "steps": (7.0, None, None),
    }


@pytest.mark.parametrize("name", ["tapt", "finetune"])
def test_what_is_written_down_is_the_same_configuration(name: str, config: Config, tmp_path: Path) -> None:
    job: Job = JOBS[name]
    arguments: list[str] = [f"--model.path={config.model.path}", f"--storage.root={config.storage.root}"]
    arguments += [f"--task.{split}=data/{split}.jsonl" for split in ("train", "dev", "test")]
    wanted = parse([*arguments, "--training.learning_rate=3e-3", "--finetune.seeds=[4,5]"], "", job.kind)
    file = tmp_path / "best.yaml"
    file.write_text(as_file(settings_of(wanted, job)))
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    assert content["finetune"] == {"seeds": [4, 5]}
    assert parse([f"--config={file}"], "", job.kind) == wanted


def test_what_is_written_down_holds_no_credentials() -> None:
    text = as_file({"corpus": {"paths": "https://me:pass@host/a.jsonl?sig=abc"}})
    assert yaml.safe_load(text) == {"corpus": {"paths": "https://host/a.jsonl"}}
    assert text.startswith("# Credentials are left out")
