"""Tests the check of advice against a study's verdicts. Nothing is run."""

import pytest

from adapt.advise.advice import Advice, recommend
from adapt.advise.evidence import AS_IT_IS, BOTH, DAPT, TAPT
from adapt.show.blocks import Cell
from adapt.statistics.seeds import Conclusion, Ending, Looked, Seen
from benchmarks.advice_check import Check, advice_table, checked
from tests.advise.cases import case, task


@pytest.mark.parametrize(
    ("votes", "conclusion", "check"),
    [
        *((2, "better", "confirmed"), (2, "worse", "contradicted"), (2, "equal", "contradicted")),
        *((-3, "better", "contradicted"), (-3, "worse", "confirmed"), (-3, "equal", "confirmed")),
        *((2, "open", "undecided"), (-3, "open", "undecided")),
    ],
)
def test_a_verdict_confirms_or_contradicts_votes(votes: int, conclusion: Conclusion, check: Check) -> None:
    assert checked(votes, conclusion) == check


def ending(difference: float, conclusion: Conclusion) -> Ending:
    seen = Seen(difference, difference - 0.01, difference + 0.01, 0.004, 0.01, 0.05, conclusion)
    return Ending(seen, Looked("toy", "", 1, [6], 0.05, 0.02, 3, 1, 0, "pocock", {}))


def advice_on_a_far_corpus() -> Advice:
    return recommend(case(tasks=[task(overlap=0.1, general_overlap=0.2)]), [])


def test_each_recipe_with_votes_and_a_result_has_a_row() -> None:
    given = advice_on_a_far_corpus()
    assert {recipe.name: recipe.votes for recipe in given.recipes} == {TAPT: 2, AS_IT_IS: 0, DAPT: -3, BOTH: -3}
    ended = {("toy", TAPT): ending(0.034, "better"), ("toy", DAPT): ending(-0.001, "open")}
    rows = [
        [cell.text if isinstance(cell, Cell) else cell for cell in row]
        for row in advice_table({"toy": given}, ended).rows
    ]
    minus = "\N{MINUS SIGN}"
    assert [row[:5] for row in rows] == [["toy", TAPT, "1", "+2", "+3.4"], ["toy", DAPT, "3", "-3", f"{minus}0.1"]]
    assert [row[-1] for row in rows] == ["confirmed", "undecided"]
    assert "+2.4 to +4.4" in rows[0][5]
