"""The sentences of the verdict."""

from dataclasses import replace

import numpy as np
import pytest

from adapt.show.report.entry import Study
from adapt.show.report.tasks.compared import Compared, RecipeCompared, compare_all
from adapt.show.report.tasks.cost import Trainings
from adapt.show.report.tasks.verdict import span, stars, verdicts
from adapt.statistics.compare import Comparison


def found(difference: float, p: float, adjusted: float) -> RecipeCompared:
    low, high = difference - 0.02, difference + 0.02
    return RecipeCompared(Comparison(difference, low, high, 0.01, p, 0.001, ("seeds",), np.empty(0), {}), adjusted)


@pytest.fixture(scope="module")
def compared(results):
    return compare_all(results)


def test_the_whole_comes_first_then_each_task(study, results, compared):
    first, *tasks = verdicts(results, compared, Trainings(study))
    assert first.head.startswith("Overall: ")
    assert "points on average over 3 tasks" in first.text
    assert [each.head.split(":")[0] for each in tasks] == [row.name for row in results.rows]
    assert all("cost 0.8 device-hours; general loss +0.2" in each.text for each in (first, *tasks))


def test_the_recipe_with_the_largest_gain_is_named(study, results, compared):
    for row, finding in zip(results.rows, verdicts(results, compared, Trainings(study))[1:], strict=True):
        means = {recipe: group.tested().scores.mean() for recipe, group in row.groups.items() if recipe != "RoBERTa"}
        assert finding.head == f"{row.name}: {results.label(max(means, key=lambda recipe: means[recipe]))}"


@pytest.mark.parametrize(
    ("one", "tone", "start"),
    [
        (found(0.041, 0.008, 0.032), "better", "+4.1 micro-F1 on chemprot, 95% CI +2.1 to +6.1, p = .008 (Holm .032)"),
        (found(0.041, 0.03, 0.12), "open", "No significant difference: +4.1 micro-F1"),
        (found(-0.041, 0.001, 0.004), "worse", "Worse than the baseline, though the best of the others: "),
    ],
)
def test_sentences_are_no_stronger_than_the_figures(results, one, tone, start):
    row = results.rows[1]
    row = replace(row, groups={recipe: row.groups[recipe] for recipe in ("RoBERTa", "DAPT")})
    compared = Compared({("chemprot", "DAPT"): one}, {"DAPT": one}, {"DAPT": 1})
    (finding,) = verdicts(replace(results, rows=[row]), compared, Trainings(Study("none", "RoBERTa", [])))
    assert finding.tone == tone
    assert finding.text.startswith(start)
    assert "cost" not in finding.text  # not known


def test_a_recipe_with_fewer_tasks_is_not_the_best_overall(study, results):
    tasks = {("acl_arc", "TAPT"): found(0.3, 0.001, 0.001)}
    tasks |= {(row.name, "DAPT"): found(0.02, 0.001, 0.001) for row in results.rows}
    compared = Compared(
        tasks, {"TAPT": found(0.3, 0.001, 0.001), "DAPT": found(0.02, 0.001, 0.001)}, {"TAPT": 1, "DAPT": 3}
    )
    assert verdicts(results, compared, Trainings(study))[0].head == "Overall: DAPT"


@pytest.mark.parametrize(("adjusted", "mark"), [(0.009, "**"), (0.04, "*"), (0.05, "")])
def test_stars(adjusted, mark):
    assert stars(found(0.01, 0.001, adjusted)) == mark
    assert stars(None) == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [([0.21], "+0.21"), ([0.02, 0.05], "+0.02 to +0.05"), ([-0.1, -0.1], "\N{MINUS SIGN}0.10"), ([-0.001], "0.00")],
)
def test_changes_of_loss(changes, text):
    assert span(changes) == text
