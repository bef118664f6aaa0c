"""Which comparisons are made, and for how many p is corrected."""

from dataclasses import replace

import numpy as np
import pytest

from adapt.show.report.tasks.compared import compare_all
from adapt.statistics.compare import compare
from adapt.statistics.holm import holm


@pytest.fixture(scope="module")
def compared(results):
    return compare_all(results)


def test_each_recipe_meets_the_baseline_on_each_task(results, compared):
    wanted = {(row.name, recipe) for row in results.rows for recipe in results.recipes if recipe != "RoBERTa"}
    assert set(compared.tasks) == wanted
    assert compared.shared == dict.fromkeys(results.recipes[1:], 3)
    found = compared.tasks["scierc", "DAPT"].comparison
    groups = next(row for row in results.rows if row.name == "scierc").groups
    wanted = compare(groups["DAPT"].tested(), groups["RoBERTa"].tested())
    assert (found.low, found.high, found.p) == (wanted.low, wanted.high, wanted.p)


def test_p_is_corrected_for_the_recipes_of_one_task(results, compared):
    for row in results.rows:
        found = [compared.tasks[row.name, recipe] for recipe in results.recipes[1:]]
        assert [each.adjusted for each in found] == pytest.approx(holm([each.comparison.p or 0 for each in found]))


def test_the_average_is_over_tasks(results, compared):
    differences = [compared.tasks[row.name, "TAPT"].comparison.difference for row in results.rows]
    assert compared.average["TAPT"].comparison.difference == pytest.approx(np.mean(differences))


def test_without_leaks_other_scores_are_compared(results, compared):
    clean = compare_all(replace(results, rows=results.rows[:1]), without_leaks=True)
    groups = results.rows[0].groups
    wanted = np.mean([one["score_without_leaks"] for one in groups["DAPT"].metrics]) - np.mean(
        [one["score_without_leaks"] for one in groups["RoBERTa"].metrics]
    )
    assert clean.tasks["acl_arc", "DAPT"].comparison.difference == pytest.approx(wanted)
    assert clean.tasks["acl_arc", "DAPT"].comparison.over == ("examples", "seeds")


def test_other_examples_leave_the_scores_alone(results):
    row = results.rows[0]
    group = row.groups["DAPT"]
    other = replace(group, predictions=replace(group.predictions, ids=("somewhere else",)))
    changed = replace(results, rows=[replace(row, groups={**row.groups, "DAPT": other})])
    found = compare_all(changed).tasks
    assert found["acl_arc", "DAPT"].comparison.over == ("seeds",)
    assert found["acl_arc", "TAPT"].comparison.over == ("examples", "seeds")


def test_without_baseline_nothing_is_compared(results):
    found = compare_all(replace(results, baseline=None))
    assert (found.tasks, found.average) == ({}, {})


def test_rows_of_one_task_are_not_averaged(results):
    """They share their test examples."""
    twice = [results.rows[0], replace(results.rows[0], name="acl_arc mode=lora")]
    found = compare_all(replace(results, rows=twice))
    assert found.average == {}
    assert len(found.tasks) == 8
