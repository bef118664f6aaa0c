"""What recipes cost, and what they did to general ability."""

import pytest

from adapt.show.report.tasks.cost import Trainings, finetuning_hours, hours
from adapt.show.report.tasks.figures import cost_against_gain


def test_a_recipe_costs_its_trainings_each_once(study, results):
    trainings = Trainings(study)
    group = results.rows[0].groups["DAPT+TAPT"]
    assert trainings.cost(group.trained).device_hours == pytest.approx(0.83)
    assert trainings.cost(group.trained).money == pytest.approx(2.5 * 0.83)
    assert trainings.of_recipe(results, "DAPT").device_hours == pytest.approx(0.8)  # one, for three tasks
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
    from adapt.show.report.entry import Study
    from adapt.show.report.tasks.compared import compare_all

    compared = compare_all(results)
    assert cost_against_gain(results, compared, Trainings(study))
    assert cost_against_gain(results, compared, Trainings(Study("none", "RoBERTa", []))) is None
