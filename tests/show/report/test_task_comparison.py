"""Tests the report's comparison of each recipe with the baseline: figures, costs and sentences."""

from dataclasses import replace

import numpy as np
import pytest

from adapt.show.report.study import Study
from adapt.show.report.study_results import collect
from adapt.show.report.task_comparison import (
    Compared,
    RecipeCompared,
    Trainings,
    compare_all,
    corrected,
    finetuning_hours,
    hours,
    span,
    stars,
    verdicts,
)
from adapt.show.report.task_tables import cost_against_gain
from adapt.statistics.comparison import Comparison, compare, equivalence_p, holm, paired


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


def test_a_sequential_study_compares_nothing_before_its_first_look(study):
    early = collect(replace(study, looks=[]))
    found = compare_all(early)
    assert not found.tasks
    first, *_ = verdicts(early, found, Trainings(study))
    assert first.text == "The first look (interim analysis) of this sequential study has not happened yet."


def test_rows_have_the_name_of_the_entry_before_other_entries_finish(study):
    one = collect(replace(study, tuned=frozenset({"finetune", "lora"})))
    assert {row.name for row in one.rows} == {f"{row.task} · finetune" for row in one.rows}


def test_rows_of_one_task_are_not_averaged(results):
    """Two rows of one task have the same test examples, so their average is not computed."""
    twice = [results.rows[0], replace(results.rows[0], name="acl_arc mode=lora")]
    found = compare_all(replace(results, rows=twice))
    assert found.average == {}
    assert len(found.tasks) == 8


def test_a_recipe_costs_its_trainings_each_once(study, results):
    trainings = Trainings(study)
    group = results.rows[0].groups["DAPT+TAPT"]
    assert trainings.cost(group.trained).device_hours == pytest.approx(0.83)
    assert trainings.cost(group.trained).money == pytest.approx(2.5 * 0.83)
    # a single training run is used for all three tasks
    assert trainings.of_recipe(results, "DAPT").device_hours == pytest.approx(0.8)
    assert trainings.of_recipe(results, "DAPT+TAPT").device_hours == pytest.approx(0.8 + 3 * 0.03)
    assert trainings.of_recipe(results, "RoBERTa").device_hours == 0


def test_a_training_that_is_not_there_has_no_price(study):
    assert Trainings(study).cost(["elsewhere"]).device_hours is None


def test_general_loss_is_from_before_the_first_to_after_the_last(study, results):
    trainings = Trainings(study)
    groups = results.rows[0].groups
    assert trainings.general_change(groups["DAPT"]) == pytest.approx(0.21)
    assert trainings.general_change(groups["DAPT+TAPT"]) == pytest.approx(0.25)
    assert trainings.general_change(groups["RoBERTa"]) is None
    assert trainings.general_changes(results, "DAPT") == pytest.approx([0.21])


def test_finetuning_is_summed_over_seeds(results):
    assert finetuning_hours(results.rows[0].groups["DAPT"]) == pytest.approx(5 * 290 / 3600)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0.0, "0"), (0.05, "3 minutes"), (0.83, "0.8 hours"), (1234.0, "1,234 hours")],
)
def test_time_in_words(value, text):
    assert hours(value) == text


def test_no_drawing_without_two_prices(study, results):
    from adapt.show.report.study import Study
    from adapt.show.report.task_comparison import compare_all

    compared = compare_all(results)
    assert cost_against_gain(results, compared, Trainings(study))
    assert cost_against_gain(results, compared, Trainings(Study("none", "RoBERTa", []))) is None


def found(difference: float, p: float, adjusted: float) -> RecipeCompared:
    low, high = difference - 0.02, difference + 0.02
    return RecipeCompared(Comparison(difference, low, high, 0.01, p, 0.001, ("seeds",), np.empty(0), {}), adjusted)


def test_the_whole_comes_first_then_each_task(study, results, compared):
    first, *tasks = verdicts(results, compared, Trainings(study))
    assert first.head.startswith("Overall: ")
    assert "points on average over 3 tasks" in first.text
    assert [each.head.split(":")[0] for each in tasks] == [row.name for row in results.rows]
    assert all(
        "cost 0.8 device-hours; change of the loss on general text +0.2" in each.text for each in (first, *tasks)
    )


def test_tests_of_equality_are_corrected_too():
    rng = np.random.default_rng(2)
    found = {f"recipe {number}": paired(rng.normal(0.0, 0.01, 5)) for number in range(3)}
    found["one seed"] = paired([0.1])
    shown = corrected(found, 0.03)
    ps = holm([equivalence_p(comparison, 0.03) for comparison in found.values() if comparison.low is not None])
    assert [each.equal for each in shown.values()] == [*map(pytest.approx, ps), None]
    assert [each.ended for each in shown.values()] == [*("equal" if p < 0.05 else "open" for p in ps), "open"]


def test_the_recipe_with_the_largest_gain_is_named(study, results, compared):
    for row, finding in zip(results.rows, verdicts(results, compared, Trainings(study))[1:], strict=True):
        means = {recipe: group.tested().scores.mean() for recipe, group in row.groups.items() if recipe != "RoBERTa"}
        assert finding.head == f"{row.name}: {results.label(max(means, key=lambda recipe: means[recipe]))}"


@pytest.mark.parametrize(
    ("one", "tone", "start"),
    [
        (found(0.041, 0.008, 0.032), "better", "+4.1 micro-F1 on chemprot, 95% CI +2.1 to +6.1, p = .008 (Holm .032)"),
        (found(0.041, 0.03, 0.12), "open", "Undecided: +4.1 micro-F1"),
        (found(-0.041, 0.001, 0.004), "worse", "Worse than the baseline, although the best of the other recipes: "),
    ],
)
def test_sentences_are_no_stronger_than_the_figures(results, one, tone, start):
    row = results.rows[1]
    row = replace(row, groups={recipe: row.groups[recipe] for recipe in ("RoBERTa", "DAPT")})
    compared = Compared({("chemprot", "DAPT"): one}, {"DAPT": one}, {"DAPT": 1})
    (finding,) = verdicts(replace(results, rows=[row]), compared, Trainings(Study("none", "RoBERTa", [])))
    assert finding.tone == tone
    assert finding.text.startswith(start)
    assert "cost" not in finding.text  # The cost is unknown, so the sentence does not mention it.


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
