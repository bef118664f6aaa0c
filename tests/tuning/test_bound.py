"""Tests the bound of a search on a second figure: which trial is best, what a searcher learns, and what is refused."""

from dataclasses import replace

import pytest

from adapt.config import BoundConfig, Config, EvaluationConfig, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.show.blocks import Table
from adapt.support.errors import ConfigError
from adapt.tuning.bound import check_bound, excess_of, penalised
from adapt.tuning.search_stage import Searched, TrialRow
from tests.show.report.fake_studies import Fake

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
    assert penalised([[5.0, 0.4], [5.0, 0.2]], [True]) == [[0.4], [0.2]]  # no trial meets the bound


def searched(rows: list[TrialRow], best: int, beyond: list[int]) -> Searched:
    return Searched("dapt", {"losses.domain.after": "min"}, rows, best, [best], 0.0, 1, 0, {}, BOUND, beyond)


def test_the_table_shows_the_bounded_figure_and_marks_trials_beyond(tmp_path) -> None:
    rows = [TrialRow(0, {}, "a", figures(2.0, 0.05)), TrialRow(1, {"seed": 1}, "b", figures(1.5, 0.3))]
    found = searched(rows, 0, [1])
    (table,) = [block for block in found.blocks(Fake(tmp_path).record("search", "s")) if isinstance(block, Table)]
    assert table.header == ["trial", "losses.domain.after", BOUND.metric, "seed"]
    assert [row[2] for row in table.rows] == ["0.3000 (beyond)", "0.0500"]
    assert found.bound_sentence() == "1 of 2 trials keep losses.general.change within 0.1; the best one is among these."
    without = searched(rows[1:], 1, [1])
    assert without.bound_sentence().startswith("No trial keeps losses.general.change within 0.1. Trial 1 is nearest")


WAYS = {"losses.domain.after": -1, BOUND.metric: -1, "tokens": 0}
GENERAL = EvaluationConfig(general_paths="general.jsonl")


@pytest.mark.parametrize(
    ("bound", "config", "said"),
    [
        (BoundConfig("losses.general.chang", 0.1), Config(evaluation=GENERAL), "reports no losses.general.chang"),
        (BoundConfig("tokens", 5), Config(), "reports no tokens that is better on one side"),
        (BOUND, Config(), "needs general text"),
        (BOUND, Config(evaluation=GENERAL, tune=TuneConfig(scheduler="asha")), "stops trials by their first objective"),
    ],
)
def test_a_bound_that_cannot_be_checked_is_refused(bound: BoundConfig, config: Config, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_bound(replace(config, tune=replace(config.tune, bound=bound)), WAYS)
    check_bound(replace(config, tune=TuneConfig()), WAYS)
