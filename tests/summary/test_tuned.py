"""What is shown of a search."""

from typing import Any

from adapt.summary.confirmed import gain_told
from adapt.summary.tuned import in_order


def trial(number: int, value: float | None, steps: int | None = None) -> dict[str, Any]:
    figures = {} if value is None else {"loss": {"value": value, "low": None, "high": None}}
    return {"number": number, "figures": figures, "steps": steps, "values": {}}


def numbers(way: str, *trials: dict[str, Any]) -> list[int]:
    return [each["number"] for each in in_order({"objectives": {"loss": way}, "trials": list(trials)})]


def test_the_best_trial_is_on_top_and_failed_ones_come_last() -> None:
    trials = trial(0, 2.0), trial(1, None), trial(2, 1.0), trial(3, 3.0)
    assert numbers("min", *trials) == [2, 0, 3, 1]
    assert numbers("max", *trials) == [3, 0, 2, 1]


def test_a_trial_that_came_further_comes_first() -> None:
    assert numbers("min", trial(0, 2.0, 9), trial(1, 1.0, 3), trial(2, 1.5, 9)) == [2, 0, 1]


def test_the_gain_is_told_where_selection_can_be_said() -> None:
    assert "what the best values gain is not known" in gain_told({"fresh": {"dev_score": {}}, "gained": None})
    gain = {"fresh": {"dev_score": {}}, "apparent": 0.25, "gained": 0.1, "selection": 0.15}
    assert gain_told(gain) == (
        "dev_score: the best trial was better by 0.2500 when it was chosen, and is by +0.1000 with fresh seeds;"
        " +0.1500 of that was selection"
    )
    assert gain_told({**gain, "selection": None}) == ""
