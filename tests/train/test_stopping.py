"""Tests at which measurement a training run ends early, and which model it exports."""

import math
from dataclasses import replace
from typing import Any

import pytest

from adapt.config import PhaseConfig, StopConfig, TrainingConfig
from adapt.support.errors import ConfigError
from adapt.train.stopping import Point, check_rules, described, early_end, exported_point, is_loss, kept

MEASURED = {"domain_loss": "", "general_loss": "", "past_loss": "only later domains have domains before them"}


def stopping(*rules: StopConfig) -> TrainingConfig:
    return TrainingConfig(stop=list(rules))


def points(**losses: list[float]) -> list[Point]:
    """Returns a measurement every 10 steps. The n-th measurement has the n-th value of each metric's list."""
    columns = zip(*losses.values(), strict=True)
    return [Point(10 * place, dict(zip(losses, values, strict=True))) for place, values in enumerate(columns)]


BUDGET = StopConfig(metric="general_loss", rise=0.1)


def test_a_budget_ends_the_training_at_the_first_point_beyond_it() -> None:
    measured = points(general_loss=[3.0, 3.1, 3.09, 3.11], domain_loss=[4.0, 3.0, 2.5, 2.2])
    training = stopping(BUDGET)
    assert [early_end(measured[: 1 + n], training) is None for n in range(4)] == [True, True, True, False]
    end = early_end(measured, training)
    assert end
    assert (end.step, end.exported_step, end.metric) == (30, 20, "general_loss")
    assert end.limit == pytest.approx(3.1)


def test_the_model_of_the_last_point_within_the_budget_is_kept() -> None:
    measured = points(general_loss=[3.0, 3.05, 3.2])
    assert [exported_point(measured[: 1 + n], stopping(BUDGET)) for n in range(3)] == [0, 1, 1]


def test_a_loss_that_is_not_a_number_is_outside_of_the_budget() -> None:
    measured = points(general_loss=[3.0, 3.05, math.nan])
    end = early_end(measured, stopping(BUDGET))
    assert end
    assert end.exported_step == 10


def test_a_training_that_leaves_its_budget_at_once_exports_the_first_model() -> None:
    end = early_end(points(general_loss=[3.0, 3.5]), stopping(BUDGET))
    assert end
    assert end.exported_step == 0
    *_, fix, _ = described(end, points(general_loss=[3.0, 3.5], domain_loss=[4.0, 3.0]))
    assert fix.startswith("This is the initial model")
    assert "learning_rate" in fix


def test_without_budgets_the_last_model_is_exported() -> None:
    measured = points(domain_loss=[3.0, 3.0, 3.0])
    training = stopping(StopConfig(patience=2))
    assert exported_point(measured, training) is None
    end = early_end(measured, training)
    assert end
    assert (end.step, end.exported_step, end.limit) == (20, 20, 3.0)


@pytest.mark.parametrize(
    ("losses", "minimum", "ends"),
    [
        ([4, 3, 2, 1], 0.0, False),
        ([4, 3, 3.1, 3.2], 0.0, True),
        ([4, 3, 3.1, 2.9], 0.0, False),  # the loss improves again before the patience ends
        ([4, 3.95, 3.91], 0.1, True),  # each improvement is too small, and so is their sum
        ([4, 3.95, 3.89], 0.1, False),  # the sum of the improvements is large enough
    ],
)
def test_patience_counts_points_without_a_large_enough_improvement(losses, minimum, ends) -> None:
    rule = StopConfig(metric="domain_loss", patience=2, minimum=minimum)
    assert (early_end(points(domain_loss=losses), stopping(rule)) is not None) == ends


def test_scores_improve_when_they_rise() -> None:
    rule = StopConfig(metric="dev_score", patience=1)
    assert early_end(points(dev_score=[0.1, 0.2]), stopping(rule)) is None
    end = early_end(points(dev_score=[0.2, 0.1]), stopping(rule))
    assert end
    assert end.limit == 0.2


def test_the_first_rule_that_applies_is_named() -> None:
    measured = points(general_loss=[3.0, 3.01, 3.02], domain_loss=[2.0, 2.0, 2.0])
    end = early_end(measured, stopping(BUDGET, StopConfig(patience=2)))
    assert end
    assert (end.metric, end.exported_step) == ("domain_loss", 20)


def test_the_cost_of_a_budget_is_the_loss_given_up_on_the_domain() -> None:
    measured = points(general_loss=[3.0, 3.05, 3.2], domain_loss=[4.0, 3.0, 2.75])
    first, second = described(early_end(measured, stopping(BUDGET)), measured)
    assert "risen by 0.200 nats per token, more than the budget of 0.1" in first
    assert "exported model is that of step 10" in first
    assert "cost 0.250 nats per token on the domain: its loss was 3.000 at step 10 and 2.750 at step 20" in second
    assert described(None, measured) == []


@pytest.mark.parametrize(
    ("changes", "interval", "said"),
    [
        ({"stop": BUDGET}, None, "set evaluation.interval_steps"),
        ({"stop": StopConfig(metric="dev", patience=1)}, 5, "dev is not measured; choose one of domain_loss, general"),
        ({"stop": StopConfig(metric="past_loss", rise=1.0)}, 5, "past_loss is not measured; only later domains"),
        ({"stop": StopConfig()}, 5, "must have either patience or rise, but has neither"),
        ({"stop": StopConfig(patience=1, rise=0.1)}, 5, "must have either patience or rise, but has both"),
        ({"stop": StopConfig(rise=0.1, minimum=0.1)}, 5, "minimum works only with patience"),
        ({"stop": BUDGET, "phases": [PhaseConfig(steps=3)]}, 5, "training.stop and training.phases are both set"),
    ],
)
def test_rules_that_cannot_be_judged_are_refused(changes: dict[str, Any], interval: int | None, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_rules(TrainingConfig(**changes), interval, MEASURED)
    assert said in f"{raised.value.what}; {raised.value.fix}"


def test_general_loss_needs_general_text() -> None:
    with pytest.raises(ConfigError, match="general_loss is not measured") as raised:
        check_rules(stopping(BUDGET), 5, {"domain_loss": "", "general_loss": "set evaluation.general_paths"})
    assert raised.value.fix == "set evaluation.general_paths"


def test_the_advice_for_a_metric_is_given_even_if_no_metric_is_measured() -> None:
    with pytest.raises(ConfigError) as raised:
        check_rules(stopping(BUDGET), 5, {"general_loss": "set evaluation.general_paths"})
    assert raised.value.fix == "set evaluation.general_paths"


BEST = TrainingConfig(keep="best")


def test_the_best_measurement_is_kept() -> None:
    measured = points(domain_loss=[4.0, 3.0, 3.5, 3.0])
    # if measurements are equally good, the model of the first is exported
    assert [exported_point(measured[: 1 + n], BEST) for n in range(4)] == [0, 1, 1, 1]
    scores = points(**{"intent.dev_macro_f1": [0.5, 0.4, 0.6, 0.55]})
    assert exported_point(scores, replace(BEST, keep_metric="intent.dev_macro_f1")) == 2
    assert kept(scores, replace(BEST, keep_metric="intent.dev_macro_f1")) == [
        "The model of step 20 is exported: of 4 measurements, it has the best value of intent.dev_macro_f1, 0.600."
    ]
    assert kept(scores, TrainingConfig()) == []


def test_the_best_measurement_within_a_budget_is_kept() -> None:
    measured = points(general_loss=[3.0, 3.05, 3.2], domain_loss=[4.0, 3.0, 2.0])
    training = replace(stopping(BUDGET), keep="best")
    assert exported_point(measured, training) == 1
    # the last measurement is better, but beyond the budget
    assert kept(measured, training) == [
        "The model of step 10 is exported: of 2 measurements within the forgetting budget, it has the best value of"
        " the loss on the domain, 3.000."
    ]


def test_the_score_of_a_probe_is_no_loss_whatever_the_task_is_called() -> None:
    assert is_loss("past_loss.cs")
    assert not is_loss("my_loss.dev_accuracy")


@pytest.mark.parametrize(
    ("training", "interval", "said"),
    [
        (BEST, None, "training.keep best is set, but nothing is measured while the model trains"),
        (replace(BEST, keep_metric="past_loss"), 10, "training.keep_metric: past_loss is not measured"),
        (replace(BEST, keep_metric="x"), 10, "training.keep_metric: x is not measured"),
        (replace(BEST, phases=[PhaseConfig(steps=5)]), 10, "training.keep best and training.phases are both set"),
    ],
)
def test_a_best_model_that_cannot_be_found_is_refused(
    training: TrainingConfig, interval: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_rules(training, interval, MEASURED)
