"""Tests the forecast of the stages, device hours and costs of a search. Trains no model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from adapt.config import Config, TuneConfig
from adapt.runner import Record, Store
from adapt.stage.finetuning import Finetune
from adapt.support.errors import ConfigError
from adapt.tuning.proposals import proposals
from adapt.tuning.search_run import SearchAhead, check_budget, hours_of_all, known_proposals, trials_ahead
from adapt.tuning.search_stage import Search
from tests.tuning.test_confirm import search as search

SPACE = {"finetune.learning_rate": tune.choice([1e-3, 1e-4, 1e-5]), "finetune.epochs": tune.choice([1, 2])}
SETTINGS = TuneConfig(searcher="grid", samples=6)


def finished(stage: Finetune, store: Store, hours: float) -> None:
    folder = store.folder(stage.kind, stage.name, stage.key)
    folder.mkdir(parents=True)
    cost = {"device_hours": hours}
    Record(stage.kind, stage.name, stage.key, 1, {}, {}, {}, cost, {}, {}, {}, "", folder).save()


def seeds_of(search: Search, values: Mapping[str, Any]) -> tuple[Finetune, ...]:
    ((runs),) = search.trial(values).runs.values()
    return runs


def test_trials_are_forecast_if_their_values_need_no_result() -> None:
    count = {
        searcher: len(known_proposals(proposals(SPACE, TuneConfig(searcher=searcher, samples=9, at_once=3), [False])))
        for searcher in ("random", "grid", "tpe")
    }
    assert count == {"random": 9, "grid": 6, "tpe": 3}


def test_a_stage_counts_for_the_first_trial_that_needs_it(search: Search, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for run in seeds_of(search, {}):
        finished(run, store, 2.0)
    first, *others = trials_ahead(search, proposals(SPACE, SETTINGS, [False]), store)
    seeds = len(search.config.finetune.seeds)
    # The fine-tuning runs of all seeds are finished. Three stages remain: task, summary of the seeds, and trial.
    assert (first.to_run, first.device_hours) == (3, 2.0 * seeds)
    # All trials share the prepared task, which is counted for the first trial.
    assert {each.to_run for each in others} == {seeds + 2}
    # Each fine-tuning run is assumed to take 2 hours, which is the mean time of the finished fine-tuning runs.
    assert all(each.device_hours == 2.0 * seeds for each in others)
    assert hours_of_all([first, *others], 6) == 2.0 * seeds * 7


def test_hours_are_unknown_if_the_duration_of_stages_is_unknown(search: Search, tmp_path: Path) -> None:
    ahead = trials_ahead(search, proposals(SPACE, SETTINGS, [False]), Store(tmp_path / "runs"))
    assert {each.device_hours for each in ahead} == {None}
    assert hours_of_all(ahead, 6) is None


def test_the_total_cost_of_all_trials_is_shown(search: Search, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for run in seeds_of(search, {}):
        finished(run, store, 1.0)
    priced = replace(search.config.resources, price_per_device_hour=2.5)
    tuned = replace(search.config.tune, searcher="grid", samples=2, budget_device_hours=50.0)
    asked = replace(search, config=replace(search.config, resources=priced, tune=tuned))
    hours = 3 * len(search.config.finetune.seeds)
    assert SearchAhead.of(asked, store).total() == (
        f"All 3 trials will take about {hours} device-hours (cost {2.5 * hours:.2f}), and at most 50"
        " (tune.budget_device_hours)."
    )


def with_budget(search: Search, hours: float | None) -> Search:
    config: Config = search.config
    return replace(search, config=replace(config, tune=replace(config.tune, budget_device_hours=hours)))


def test_more_trials_than_the_budget_has_room_for_are_refused(search: Search, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for run in seeds_of(search, {}):
        finished(run, store, 1.0)
    trial = float(len(search.config.finetune.seeds))
    asked = proposals(SPACE, SETTINGS, [False])
    for enough in (None, 7 * trial):
        check_budget(with_budget(search, enough), asked, store)
    with pytest.raises(ConfigError, match="6 trials will take about") as caught:
        check_budget(with_budget(search, 4.5 * trial), asked, store)
    assert caught.value.fix == "set tune.samples to 3, or raise the budget"
    with pytest.raises(ConfigError) as caught:
        check_budget(with_budget(search, 0.5), asked, store)
    assert caught.value.fix == "raise the budget, or make trials shorter"
