"""Tests turns (parts of a trial, each followed by a measurement), and successive halving on a cluster."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from adapt.config import Config, PhaseConfig, TrainingConfig, TuneConfig
from adapt.job import JOBS
from adapt.parse import parse_values
from adapt.runner.stage import everything
from adapt.stage.train import Train
from adapt.support.errors import ConfigError
from adapt.train.checkpoints.branch import depends_on_length
from adapt.train.schedule import branch_step
from adapt.tuning.proposals import check_turns, lengths_of, steps_after
from adapt.tuning.search_run import search_of
from adapt.tuning.search_stage import Search
from tests import drive
from tests.drive import Jobs
from tests.job.worlds import SPLITS, enter
from tests.samples import labelled, write

TRAINING = TrainingConfig(max_steps=90, schedule="wsd", warmup_steps=4)
ASHA = TuneConfig(scheduler="asha", turns=3, reduction=3)


def judged(training: TrainingConfig = TRAINING, tune: TuneConfig = ASHA) -> Config:
    return replace(Config(), training=training, tune=tune)


def test_each_turn_is_longer_than_the_one_before_and_the_last_as_long_as_configured() -> None:
    assert [steps_after(judged(), turn) for turn in range(3)] == [10, 30, 90]
    assert steps_after(judged(), -1) == 90
    assert lengths_of(ASHA) == [1, 3, 9]
    assert (lengths_of(TuneConfig()), steps_after(replace(Config(), training=TRAINING), 0)) == ([1], None)


def test_a_turn_starts_where_the_cooldown_of_the_one_before_began() -> None:
    """Each turn continues from the step where the cooldown of the previous turn began.

    That step must lie after the warm-up and must not exceed the length of the next turn.
    """
    steps = [steps_after(judged(), turn) or 0 for turn in range(3)]
    begun = [branch_step(TRAINING, length) or 0 for length in steps]
    assert TRAINING.warmup_steps is not None
    assert all(TRAINING.warmup_steps < branch <= length for branch, length in zip(begun, steps[1:], strict=False))


WRONG: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "another schedule": ({"schedule": "linear"}, [], "this training run cannot continue"),
    "a warm-up that grows": ({"warmup_steps": None}, [], "this training run cannot continue"),
    "no length": ({"max_steps": None}, [], "this training run cannot continue"),
    "phases": ({"phases": [PhaseConfig(steps=9)]}, [], r"not possible with training\.phases"),
    "a length that is searched": ({}, ["training.epochs"], r"training\.epochs cannot be searched"),
    "a first turn within the warm-up": ({"warmup_steps": 10}, [], "is after 10 steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_training_that_could_not_go_on_is_refused(name: str) -> None:
    changes, fields, message = WRONG[name]
    config = judged(replace(TRAINING, **changes))
    with pytest.raises(ConfigError, match=message) as caught:
        check_turns(config, fields)
    assert caught.value.fix
    # Without a scheduler, trials are not divided into turns, and all of these settings are accepted.
    check_turns(replace(config, tune=TuneConfig()), fields)


def test_turns_of_one_length_are_refused() -> None:
    for tune in (replace(ASHA, turns=1), replace(ASHA, reduction=1)):
        with pytest.raises(ConfigError, match="at least two measurements of a trial"):
            check_turns(judged(tune=tune), [])
    check_turns(judged(), ["training.learning_rate"])


def searched(config: Config, space: dict[str, Any], **given: Any) -> Search:
    """Returns a search by ASHA that runs TAPT over a space. `given` sets further fields."""
    Path("space.yaml").write_text(json.dumps(space))
    whole: dict[str, Any] = {
        "model.path": config.model.path,
        "storage.root": config.storage.root,
        "task": {"train": "data/train.jsonl", "dev": "data/dev.jsonl", "test": "data/test.jsonl"},
        "mixture.replay_paths": "data/general.jsonl",
        "tapt.batch_examples": None,
        "training": {"max_steps": 90, "schedule": "wsd", "warmup_steps": 4, "sequence_length": 64},
        "evaluation.sequence_length": 64,
        "tune": {
            "space": "space.yaml",
            "scheduler": "asha",
            "turns": 3,
            "reduction": 3,
            "objectives": ["losses.domain.after"],
            "fresh_seeds": [],
        },
        **given,
    }

    def configure(values: Mapping[str, Any]) -> Config:
        return parse_values({**whole, **values}, JOBS["tapt"].kind, "here")

    return search_of(JOBS["tapt"], configure({}), configure)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    return enter(tmp_path, monkeypatch, *SPLITS, "general")


RATES = {"training.learning_rate": [1e-3, 1e-4]}
LENGTH_MATTERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "masks": ({"method.kind": "hat"}, RATES, "method.kind hat"),
    "a window": ({"method.kind": "average"}, RATES, "method.kind average"),
    "a share that changes": ({"mixture.replay_last": 0.0}, RATES, "mixture.replay_last 0"),
    "a method of the space": ({}, {"method.kind": ["plain", "cpt"]}, "method.kind cpt"),
    "a share of the space": ({}, {"mixture.replay_last": [0.1, 0.3]}, "mixture.replay_last 0.3"),
}


@pytest.mark.parametrize("name", LENGTH_MATTERS)
def test_trials_whose_steps_depend_on_their_length_are_refused(name: str, world: Config) -> None:
    given, space, message = LENGTH_MATTERS[name]
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        searched(world, space, **given).check()
    assert "tune.scheduler to none" in caught.value.fix
    whole = searched(world, space, **given)
    replace(whole, config=replace(whole.config, tune=replace(whole.config.tune, scheduler="none"))).check()


def test_trials_with_the_same_steps_are_accepted(world: Config) -> None:
    searched(world, RATES, **{"method.kind": "l2sp"}).check()
    # The final share of replay equals its initial share, so the share does not depend on the number of steps.
    searched(world, RATES, **{"mixture.replay_last": 0.1}).check()
    searched(world, {"mixture.replay_fraction": [0.1, 0.3]}).check()
    searched(world, {"method.kind": ["plain", "l2sp", "derpp"]}).check()


def test_only_keys_of_runs_that_could_have_branched_say_so(world: Config) -> None:
    """A key records a method's dependence on the length only for `wsd` runs.

    Keys of runs with other schedules stay the same, so stored results of such runs are found again.
    """

    # Returns whether the training run's key says that the run depends on its length, and whether the run really does.
    def found(**given: Any) -> tuple[bool, bool]:
        stages = everything([searched(world, RATES, **given).trial({})])
        (training,) = [stage for stage in stages if isinstance(stage, Train)]
        said = training.what()
        return depends_on_length(said), bool(training.length_matters)

    assert found() == (False, False)
    assert found(**{"method.kind": "hat"}) == (True, True)
    assert found(**{"mixture.replay_last": 0.0}) == (True, True)
    linear = {"training": {"max_steps": 90, "warmup_steps": 4, "sequence_length": 64}}
    assert found(**{"method.kind": "hat"}, **linear) == (False, True)
    assert found(**{"mixture.replay_last": 0.0}, **linear) == (False, True)


jobs = pytest.fixture(drive.jobs)
HALVING_RATES = [1.0e-2, 1.0e-5, 2.0e-5]
"""Learning rates of the trials.

The first rate is far better than the other rates, so the scheduler stops the other trials early.
"""


def search(folder: Path, model: Path) -> list[str]:
    """Returns the arguments of a search by ASHA, which measures trials after 4 and 12 steps, one trial at a time."""
    space = folder / "space.yaml"
    space.write_text(f"training.learning_rate: {HALVING_RATES}\n")
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
        # trial 0, the unchanged configuration, is measured only after all 12 steps
        (12, [12], ""),
        (12, [4, 12], ""),
        (4, [4], ""),
        (4, [4], ""),
    ]
    assert record["metrics"]["best"] in (0, 1)
    (begun,) = [line for line in job.err.splitlines() if "where its cooldown began" in line]
    assert "train: starts at step 3 of tapt-" in begun
