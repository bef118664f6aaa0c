"""Tests the sentence that says whether a new model is better, and the fix if training made the model worse."""

from collections.abc import Sequence
from typing import Any

import pytest

from adapt.config import StopConfig, TrainingConfig
from adapt.evaluate.verdict import Effect, Verdict, choice_of, effect, fix_of_worse
from adapt.train.stopping import Point


@pytest.mark.parametrize(
    ("low", "high", "of_loss", "of_score"),
    [
        (-0.2, -0.1, "better", "worse"),
        (0.1, 0.2, "worse", "better"),
        (-0.1, 0.2, "equal", "equal"),
        (0.0, 0.2, "equal", "equal"),
        (None, None, "unknown", "unknown"),
    ],
)
def test_only_an_interval_without_0_decides(
    low: float | None, high: float | None, of_loss: Effect, of_score: Effect
) -> None:
    assert effect(low, high) == of_loss
    assert effect(low, high, higher_is_better=True) == of_score


def said(effects: dict[str, Effect], **more: str) -> str:
    return Verdict(effects, **more).sentence()


def test_a_sentence_names_all_texts_and_tasks() -> None:
    start = "the model it started from"
    assert said({"your domain": "better", "general text": "better"}) == (
        f"Verdict: better than {start} on your domain and general text, beyond chance."
    )
    assert said({"your domain": "better", "general text": "worse", "intent": "equal", "topics": "unknown"}) == (
        f"Verdict: better than {start} on your domain, but worse on general text, beyond chance; no difference beyond"
        " chance on intent; undecided on topics, for which there is no 95% interval."
    )
    assert said({"your domain": "equal"}) == f"Verdict: no difference beyond chance from {start} on your domain."
    assert said({"a": "worse"}, reference="base", model="CS") == "Verdict: CS is worse than base on a, beyond chance."
    assert (
        said({"a": "equal"}, reference="base", model="CS") == "Verdict: CS: no difference beyond chance from base on a."
    )
    assert said({}, lack="nothing is held out") == "Verdict: not measured, because nothing is held out."


def test_of_many_texts_the_first_ones_are_named() -> None:
    names: dict[str, Effect] = dict.fromkeys("abcdef", "better")
    assert "on a, b, c, d and 2 more, beyond" in said(names)
    names.popitem()
    assert "on a, b, c, d and e, beyond" in said(names)


def test_the_first_text_decides_about_the_tone() -> None:
    tones: list[tuple[dict[str, Effect], str]] = [
        ({"own": "better", "general text": "worse"}, "better"),
        ({"own": "worse", "general text": "better"}, "worse"),
        ({"own": "equal", "general text": "worse"}, "open"),
        ({}, "open"),
    ]
    for effects, tone in tones:
        assert Verdict(effects).tone == tone


@pytest.mark.parametrize(
    ("losses", "passes", "parts", "advice"),
    [
        ([3.0, 4.0, 9.0], 1.0, "", "The training loss rose too, from 3.00 to 9.00: try a lower training.learning_rate"),
        ([3.0, 2.0, 1.0], 5.0, "", "read 5.0 times, so the model memorized the text: lower training.epochs"),
        ([3.0, 2.0, 1.0], 1.0, "", "Try a lower training.learning_rate, such as 0.0002 instead of 0.0005"),
        ([3.0, 2.0, 1.0], None, "", "Try a lower training.learning_rate"),
        ([], 5.0, "", "Try a lower training.learning_rate"),
        ([9.0, 8.0], 1.0, "a random head", "The model began with a random head, which needs more steps"),
        ([9.0, 20.0], 1.0, "a random head", "The training loss rose too"),
    ],
)
def test_the_fix_follows_from_the_training_loss(
    losses: Sequence[float], passes: float | None, parts: str, advice: str
) -> None:
    reports: list[dict[str, Any]] = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
    assert advice in fix_of_worse(TrainingConfig(learning_rate=5e-4), [*reports, {"step": 9}], passes, parts)


POINTS = [Point(step, {"domain_loss": loss, "a.dev_accuracy": loss / 9, "a.other_dev_accuracy": loss / 10})
          for step, loss in ((0, 8.0), (5, 4.0), (9, 5.0))]  # fmt: skip


def test_a_chosen_step_is_described_with_figures_of_both_samples() -> None:
    best = TrainingConfig(keep="best")
    assert choice_of(POINTS, TrainingConfig(), {}) is None
    choice = choice_of(POINTS, best, {"domain_loss": (8.1, 4.3)})
    assert choice
    assert choice.sentence() == (
        "The exported model is that of step 5 of 9, the best of 3 measurements of the loss on the domain, which went"
        " from 8.000 to 4.000 on the documents used for this choice, and from 8.100 to 4.300 on other documents."
    )
    alone = choice_of(POINTS, best, {})
    assert alone
    assert alone.sentence().endswith(
        "on the documents used for this choice. It was not measured on other documents, so this figure is optimistic."
    )


def test_measurements_beyond_a_forgetting_budget_do_not_count_as_compared() -> None:
    figures = [(0, 3.0, 2.0), (5, 2.9, 2.02), (9, 2.8, 2.06)]
    measured = [Point(step, {"domain_loss": domain, "general_loss": general}) for step, domain, general in figures]
    choice = choice_of(measured, TrainingConfig(keep="best", stop=StopConfig("general_loss", rise=0.05)), {})
    assert choice
    assert "step 5 of 9, the best of 2 measurements (within the forgetting budget) of the loss" in choice.sentence()


def test_a_step_that_a_probe_chose_is_reported_on_the_other_half_of_dev() -> None:
    choice = choice_of(POINTS, TrainingConfig(keep="best", keep_metric="a.dev_accuracy"), {"domain_loss": (1.0, 1.0)})
    assert choice
    assert (choice.step, choice.before, choice.other_before) == (0, 8 / 9, 8 / 10)
    said = "88.9 to 88.9 on the dev examples used for this choice, and from 80.0 to 80.0 on other dev examples"
    assert said in choice.sentence()
