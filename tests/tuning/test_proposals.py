"""Tests which values trials get, and which trials stay within the bound that a search sets on a metric."""

from collections.abc import Callable
from dataclasses import replace
from math import log10
from typing import Any

import pytest
from ray import tune

from adapt.config import BoundConfig, Config, EvaluationConfig, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.show.blocks import Table
from adapt.support.errors import ConfigError
from adapt.tuning.proposals import Results, Values, check_bound, excess_of, penalised, proposals
from adapt.tuning.search_stage import Searched, TrialRow
from tests.show.report.fake_studies import Fake

SPACE = {"a.x": tune.loguniform(1e-4, 1e-1), "a.y": tune.choice([1, 2, 3])}
LISTED = {"a.x": tune.choice([0.1, 0.2]), "a.y": tune.choice([1, 2, 3])}


def loss(values: Values) -> float:
    """Returns a loss whose minimum is 0, at x = 0.01 and y = 2."""
    return (log10(values["a.x"]) + 2) ** 2 + abs(values["a.y"] - 2)


def searched(tune: TuneConfig, objective: Callable[[Values], float] = loss, space: Any = SPACE) -> list[Values]:
    asked = proposals(space, tune, [True])
    proposed: list[Values] = []
    results: list[list[float]] = []
    for number in range(asked.count):
        known: Results = results[: asked.told(number)]
        proposed.append(asked.propose(proposed, known))
        results.append([objective(proposed[-1])])
    return proposed


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_a_search_is_a_function_of_its_seed(searcher: Any) -> None:
    settings = TuneConfig(searcher=searcher, samples=8)
    assert searched(settings) == searched(settings)
    assert searched(settings) != searched(TuneConfig(searcher=searcher, samples=8, seed=1))


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_more_samples_begin_with_the_same_trials(searcher: Any) -> None:
    few, many = (searched(TuneConfig(searcher=searcher, samples=count)) for count in (5, 9))
    assert many[:5] == few


def test_a_grid_has_each_combination_once() -> None:
    found = searched(TuneConfig(searcher="grid", samples=6), lambda values: 0.0, LISTED)
    assert [tuple(values.values()) for values in found] == [(x, y) for x in (0.1, 0.2) for y in (1, 2, 3)]


def test_a_grid_larger_than_the_samples_or_over_ranges_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the grid has 6 combinations, but tune\.samples is 5"):
        proposals(LISTED, TuneConfig(searcher="grid", samples=5), [True])
    with pytest.raises(ConfigError, match=r"a\.x has a range of values"):
        proposals(SPACE, TuneConfig(searcher="grid"), [True])


def test_tpe_finds_a_known_optimum_that_random_draws_miss() -> None:
    best = {kind: min(map(loss, searched(TuneConfig(searcher=kind, samples=40)))) for kind in ("random", "tpe")}
    assert best["tpe"] < 0.01
    assert best["tpe"] < best["random"]


def test_tpe_uses_all_trials_that_are_not_running() -> None:
    asked = proposals(SPACE, TuneConfig(searcher="tpe", samples=9, at_once=3), [True])
    assert [asked.told(number) for number in range(5)] == [0, 0, 0, 1, 2]
    assert proposals(SPACE, TuneConfig(at_once=3), [True]).told(8) == 0


def test_tpe_learns_from_what_failed_and_goes_on() -> None:
    asked = proposals(SPACE, TuneConfig(searcher="tpe", samples=9), [True])
    proposed = searched(TuneConfig(searcher="tpe", samples=6))
    assert asked.propose(proposed, [None, [1.0], None]).keys() == SPACE.keys()


def test_tpe_takes_several_objectives() -> None:
    asked = proposals(SPACE, TuneConfig(searcher="tpe", samples=20, at_once=1), [True, False])
    proposed: list[Values] = []
    results: list[list[float]] = []
    for _ in range(15):
        proposed.append(asked.propose(proposed, results))
        results.append([loss(proposed[-1]), proposed[-1]["a.x"]])
    assert len({values["a.x"] for values in proposed}) == 15


BOUND = BoundConfig("losses.general.change", 0.1)


def figures(domain: float, change: float) -> dict[str, Estimate]:
    return {"losses.domain.after": Estimate(domain), BOUND.metric: Estimate(change)}


def test_the_excess_is_the_distance_beyond_the_bound() -> None:
    assert excess_of(BOUND, figures(2.0, 0.3), lower_is_better=True) == pytest.approx(0.2)
    assert excess_of(BOUND, figures(2.0, 0.1), lower_is_better=True) == 0
    assert excess_of(BoundConfig("dev_score", 0.6), {"dev_score": Estimate(0.5)}, False) == pytest.approx(0.1)


def test_a_searcher_sees_trials_beyond_the_bound_as_worse_than_all_others() -> None:
    known = [[1.0, 0.5, 0.0], [3.0, 0.9, 0.0], [0.1, 0.99, 0.2], None, [0.2, 0.98, 0.4]]
    first, second, near, failed, far = penalised(known, [True, False])
    assert (first, second, failed) == ([1.0, 0.5], [3.0, 0.9], None)
    assert near is not None
    assert far is not None
    assert 3.0 < near[0] < far[0]
    assert 0.5 > near[1] > far[1]
    assert penalised([[5.0, 0.4], [5.0, 0.2]], [True]) == [[0.4], [0.2]]  # no trial is within the bound


def search_result(rows: list[TrialRow], best: int, beyond: list[int]) -> Searched:
    return Searched("dapt", {"losses.domain.after": "min"}, rows, best, [best], 0.0, 1, 0, {}, BOUND, beyond)


def test_the_table_shows_the_bounded_figure_and_marks_trials_beyond(tmp_path) -> None:
    rows = [TrialRow(0, {}, "a", figures(2.0, 0.05)), TrialRow(1, {"seed": 1}, "b", figures(1.5, 0.3))]
    found = search_result(rows, 0, [1])
    (table,) = [block for block in found.blocks(Fake(tmp_path).record("search", "s")) if isinstance(block, Table)]
    assert table.header == ["trial", "losses.domain.after", BOUND.metric, "seed"]
    assert [row[2] for row in table.rows] == ["0.3000 (beyond)", "0.0500"]
    assert (
        found.bound_sentence() == "1 of 2 trials keep losses.general.change within 0.1; the best trial is one of them."
    )
    without = search_result(rows[1:], 1, [1])
    assert without.bound_sentence().startswith("No trial keeps losses.general.change within 0.1. Trial 1 is nearest")
    finalist = search_result(rows, 1, [1])  # with more seeds, the only finalist is beyond the bound
    assert finalist.bound_sentence() == (
        "No finalist keeps losses.general.change within 0.1. Trial 1 is nearest, with 0.3; 1 other trial keeps it with"
        " fewer seeds, so raise tune.finalists."
    )


WAYS = {"losses.domain.after": -1, BOUND.metric: -1, "tokens": 0}
GENERAL = EvaluationConfig(general_paths="general.jsonl")


@pytest.mark.parametrize(
    ("bound", "config", "said"),
    [
        (
            BoundConfig("losses.general.chang", 0.1),
            Config(evaluation=GENERAL),
            "reports no metric losses.general.chang",
        ),
        (BoundConfig("tokens", 5), Config(), "reports no metric tokens, or does not declare"),
        (BOUND, Config(), "needs general text"),
        (
            BOUND,
            Config(evaluation=GENERAL, tune=TuneConfig(scheduler="asha")),
            "stops trials early by their first objective",
        ),
    ],
)
def test_a_bound_that_cannot_be_checked_is_refused(bound: BoundConfig, config: Config, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_bound(replace(config, tune=replace(config.tune, bound=bound)), WAYS)
    check_bound(replace(config, tune=TuneConfig()), WAYS)
