"""What a search shows of itself."""

from pathlib import Path

import pytest

from adapt.evaluate.results import Estimate
from adapt.show.blocks import Cell, Table, TextBlock
from adapt.tuning.confirm import Confirmed, FreshFigure
from adapt.tuning.search import Searched, TrialRow
from tests.runner.made import made_up
from tests.show.report.fake_studies import Fake


def trial(number: int, value: float | None, steps: int | None = None) -> TrialRow:
    figures = {} if value is None else {"loss": Estimate(value)}
    return TrialRow(number, {"rate": number / 10} if number else {}, "", figures, steps=steps)


def searched(way: str, *trials: TrialRow) -> Searched:
    return made_up(Searched, job="tapt", objectives={"loss": way}, trials=list(trials), best=2, front=[2])


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
    table, *lines = searched("min", trial(0, 2.0), trial(1, None), trial(2, 1.0)).blocks(record)
    assert isinstance(table, Table)
    assert table.header == ["trial", "loss", "rate"]
    assert table.rows == [["2*", Cell("1.0000"), "0.2"], ["0", Cell("2.0000"), "as it is"], ["1", "failed", "0.1"]]
    assert str(record.path / "best.yaml") in str(lines[-1])


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"apparent": 0.25, "gained": 0.1, "selection": 0.15},
            "dev_score: the best trial was better by 0.2500 when it was chosen, and is by +0.1000 with fresh seeds;"
            " +0.1500 of that was selection",
        ),
        ({"apparent": 0.25, "gained": 0.1, "selection": None}, None),
        (
            {"apparent": None, "gained": None, "selection": None},
            "the configuration as it is failed, so what the best values gain is not known",
        ),
    ],
)
def test_the_gain_is_said_where_selection_is_known(
    tmp_path: Path, known: dict[str, float | None], said: str | None
) -> None:
    failed = known["gained"] is None
    as_it_is = None if failed else Estimate(0.6)
    fresh = {"dev_score": FreshFigure(Estimate(0.7, 0.6, 0.8), as_it_is, None if failed else Estimate(0.1))}
    found = made_up(Confirmed, seeds=[1, 2], fresh=fresh, **known)
    table, *lines = found.blocks(Fake(tmp_path).record("confirm", "rates"))
    assert isinstance(table, Table)
    assert table.rows[0][:2] == ["dev_score", Cell("0.7000", "0.6000 to 0.8000")]
    assert table.rows[0][2] == ("failed" if failed else Cell("0.6000"))
    assert lines == ([TextBlock(said)] if said else [])
