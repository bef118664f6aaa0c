"""Tests the comparison of the best and the unchanged configuration on fresh seeds, without any training."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.job import JOBS
from adapt.parse import parse_values
from adapt.ray.connection import ENVIRONMENT
from adapt.runner import Done, Record, Stage
from adapt.support.errors import ConfigError, DataError
from adapt.tuning import search_checks
from adapt.tuning.confirm import Confirm, Confirmed
from adapt.tuning.search_checks import check_fresh_seeds
from adapt.tuning.search_run import search_of
from adapt.tuning.search_stage import Search, Searched, TrialRow
from tests.job.worlds import SPLITS, enter

VALUES = {"finetune.learning_rate": 1e-3}
FRESH = [7, 8, 9]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    config = enter(tmp_path, monkeypatch, *SPLITS)
    Path("space.yaml").write_text("finetune.learning_rate: [1.0e-3, 1.0e-4]")
    given: dict[str, Any] = {
        "model.path": config.model.path,
        "storage.root": config.storage.root,
        "task": {split: f"data/{split}.jsonl" for split in SPLITS},
        "training.sequence_length": 64,
        "evaluation.sequence_length": 64,
        "tune": {"space": "space.yaml", "fresh_seeds": FRESH},
    }

    def configure(values: Mapping[str, Any]) -> Config:
        return parse_values({**given, **values}, JOBS["finetune"].kind, "here")

    return search_of(JOBS["finetune"], configure({}), configure)


def searched(best: float, as_it_is: float | None, objective: str = "dev_score") -> Searched:
    rows = [
        TrialRow(0, {}, "a", {} if as_it_is is None else {objective: Estimate(as_it_is)}),
        TrialRow(1, VALUES, "b", {objective: Estimate(best)}),
    ]
    way = "min" if "loss" in objective else "max"
    return Searched("finetune", {objective: way}, rows, 1, [1], 0.0, 1, 0)


def record(stage: Stage[Any], metrics: Mapping[str, Any]) -> Record:
    return Record(stage.kind, stage.name, stage.key, 1, {}, {}, dict(metrics), {}, {}, {}, {}, "")


def confirmed(search: Search, found: Searched, figures: Mapping[str, tuple[list[float], list[float]]]) -> Confirmed:
    """Returns the result of the stage `Confirm` for given results of its trials.

    Args:
        search: the search.
        found: the result of the search.
        figures: values of the best and of the unchanged configuration, one per fresh seed, keyed by score or loss.
    """
    confirm = Confirm.of(search, found)
    records = {search.key: record(search, asdict(found))}
    for place, trials in enumerate((confirm.best, confirm.as_it_is)):
        for number, trial in enumerate(trials.values()):
            of_trial = {name: asdict(Estimate(values[place][number])) for name, values in figures.items()}
            records[trial.key] = record(trial, {"figures": of_trial})
    return confirm.run(Path(), Done(records)).result


def test_fresh_seeds_are_of_training_and_fine_tuning_and_see_the_real_test(search: Search) -> None:
    confirm = Confirm.of(search, searched(0.9, 0.5))
    assert [*confirm.best] == [*confirm.as_it_is] == ["7", "8", "9"]
    for seed, trial in confirm.best.items():
        ((run,),) = trial.runs.values()
        assert run.seed == run.config.seed == int(seed)
        assert run.config.finetune.learning_rate == 1e-3
        assert run.task.task.test == "data/test.jsonl"
    assert confirm.inputs["search"] is search


def test_the_gain_that_fresh_seeds_do_not_confirm_was_selection(search: Search) -> None:
    scores = {"dev_score": ([0.7, 0.8, 0.9], [0.6, 0.6, 0.9]), "test_score": ([0.5, 0.5, 0.8], [0.4, 0.5, 0.6])}
    found = confirmed(search, searched(0.9, 0.5), scores)
    assert found.apparent == pytest.approx(0.4)
    assert found.gained == pytest.approx(0.1)
    assert found.selection == pytest.approx(0.3)
    assert found.fresh["test_score"].best.value == pytest.approx(0.6)
    difference = found.fresh["dev_score"].difference
    # 95% t interval of the differences 0.1, 0.2 and 0: mean 0.1, standard deviation 0.1, t = 4.303 for n = 3.
    # Half of its width is 4.303 * 0.1 / sqrt(3) = 0.2484.
    assert (difference.low, difference.high) == (pytest.approx(0.1 - 0.2484, abs=1e-4), pytest.approx(0.3484, abs=1e-4))


def test_a_loss_that_falls_is_a_gain(search: Search) -> None:
    losses = ([2.0, 2.0, 2.0], [2.5, 2.5, 2.5])
    found = confirmed(search, searched(1.0, 3.0, "heldout_loss"), {"heldout_loss": losses})
    assert (found.apparent, found.gained, found.selection) == (2.0, 0.5, 1.5)


def test_figures_of_dev_and_test_are_not_compared(search: Search) -> None:
    found = confirmed(search, searched(0.9, 0.5, "average"), {"average": ([0.7] * 3, [0.6] * 3)})
    assert found.gained == pytest.approx(0.1)
    assert found.selection is None


def test_the_best_trial_is_tested_if_the_unchanged_configuration_failed(
    search: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unchanged configuration is not run with fresh seeds, because it would fail again and end the job."""
    failed = searched(0.9, None)
    confirm = Confirm.of(search, failed)
    assert (len(confirm.best), confirm.as_it_is) == (3, {})
    assert "warning: trial 0 (your unchanged configuration) failed" in capsys.readouterr().err
    scores = {"dev_score": ([0.7, 0.8, 0.9], []), "test_score": ([0.5, 0.6, 0.7], [])}
    found = confirmed(search, failed, scores)
    assert (found.apparent, found.gained, found.selection) == (None, None, None)
    assert found.fresh["test_score"].best.value == pytest.approx(0.6)
    assert (found.fresh["dev_score"].as_it_is, found.fresh["dev_score"].difference) == (None, None)


def test_a_test_split_that_is_not_there_is_refused_before_the_first_trial(search: Search) -> None:
    test = Path("data/test.jsonl")
    test.write_text("no JSON")
    search.check()  # this only checks that the file exists, and does not read it
    test.unlink()
    with pytest.raises(DataError, match=r"task\.test: data/test\.jsonl matches no file") as caught:
        search.check()
    assert caught.value.fix
    untested = replace(search.config, tune=replace(search.config.tune, fresh_seeds=[]))
    replace(search, config=untested).check()


@pytest.mark.parametrize(
    ("seeds", "message"),
    [([0, 7], r"already use the seeds \[0\]"), ([7, 7], "a seed is repeated"), ([-1], "out of range")],
)
def test_seeds_that_are_not_fresh_are_refused(seeds: list[int], message: str) -> None:
    config = replace(Config(), tune=TuneConfig(fresh_seeds=seeds))
    with pytest.raises(ConfigError, match=message):
        check_fresh_seeds(config)


def test_a_check_sets_the_environment_variables_that_ray_reads_before_it_imports_ray(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `RAY_DEDUP_LOGS_SKIP_REGEX`, Ray prints warnings to stdout, where only results belong."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    found: dict[str, str | None] = {}
    monkeypatch.setattr(
        search_checks, "checked_search", lambda _: found.update({name: os.environ.get(name) for name in ENVIRONMENT})
    )
    search.check()
    assert found == ENVIRONMENT
