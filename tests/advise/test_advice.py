"""Tests the order of recipes, the budget, and the recommended commands."""

from dataclasses import replace

import pytest

from adapt.advise import rules
from adapt.advise.advice import recommend
from adapt.advise.recipe_costs import AS_IT_IS, BOTH, DAPT, SELECTED, TAPT
from adapt.config import AdviceConfig, Config, SelectConfig, TrainingConfig
from tests.advise.cases import RECIPES, case, cost, task, text

NEAR = task(overlap=0.5, general_overlap=0.4)
FAR = task(overlap=0.3, general_overlap=0.4)


def order(*arguments, **evidence) -> list[str]:
    return [recipe.name for recipe in recommend(case(*arguments, **evidence), []).recipes]


def test_dapt_and_tapt_come_first_if_the_domain_is_near() -> None:
    assert order(tasks=[NEAR], general=text(loss=1.0))[0] == BOTH


def test_dapt_comes_last_if_the_domain_is_far() -> None:
    assert order(tasks=[FAR], general=text(loss=1.0)) == [TAPT, AS_IT_IS, DAPT, BOTH]


def test_cheap_tapt_comes_before_dapt_and_tapt() -> None:
    dear = {**RECIPES, DAPT: cost(1e5, 100), BOTH: cost(1.1e5, 101)}
    assert order(dear, tasks=[NEAR], general=text(loss=1.0))[:2] == [TAPT, BOTH]


def test_recipes_with_equal_votes_are_ordered_by_cost() -> None:
    assert [recipe.votes for recipe in recommend(case(), []).recipes] == [2, 2, 0, 0]
    assert order() == [TAPT, BOTH, AS_IT_IS, DAPT]
    assert order({**RECIPES, TAPT: cost(9e3, 9)}) == [BOTH, TAPT, AS_IT_IS, DAPT]


def test_recipes_within_the_budget_come_before_those_with_more_votes() -> None:
    config = Config(advice=AdviceConfig(budget_device_hours=3.5))
    found = recommend(case(config=config, tasks=[NEAR]), []).recipes
    assert [(recipe.name, recipe.budget) for recipe in found] == [
        *((TAPT, "within"), (DAPT, "within"), (AS_IT_IS, "within"), (BOTH, "above")),
    ]
    unknown = recommend(case({DAPT: cost(1e3, None)}, config=config, tasks=[]), []).recipes
    assert [recipe.budget for recipe in unknown] == ["not known"]


def test_a_rule_that_does_not_hold_in_our_replication_gives_no_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.CHECKED, "tapt_gains", "does not hold")
    monkeypatch.setitem(rules.CHECKED, "both_are_best", "undecided")
    found = recommend(case(), [])
    assert {recipe.name: recipe.votes for recipe in found.recipes} == {AS_IT_IS: 0, TAPT: 0, DAPT: 0, BOTH: 2}
    assert {remark.rule: remark.checked for remark in found.remarks}["tapt_gains"] == "does not hold"


def test_commands_repeat_the_arguments() -> None:
    arguments = ["--config", "my file.yaml", "--seed=3"]
    found = {recipe.name: recipe.command for recipe in recommend(case(), arguments).recipes}
    given = "--config 'my file.yaml' --seed=3"
    assert found == {
        AS_IT_IS: f"dontstop finetune {given}",
        TAPT: f"dontstop tapt {given} --training.epochs=100 --training.learning_rate=0.0001",
        DAPT: f"dontstop dapt {given} --training.epochs=1",
        BOTH: f"dontstop dapt {given} --training.epochs=1",
    }
    limited = replace(case().config, training=TrainingConfig(max_steps=5))
    assert recommend(case({DAPT: cost(1)}, config=limited), []).recipes[0].command == "dontstop dapt"


def test_commands_give_a_model_without_a_head_a_new_one() -> None:
    found = recommend(case(has_head=False), ["--model.path=minilm"])
    assert all(recipe.command.split()[2:4] == ["--model.path=minilm", "--model.head=new"] for recipe in found.recipes)


def test_only_the_recipe_with_selection_uses_the_pool() -> None:
    config = Config(select=SelectConfig(pool_paths="pool.jsonl"), training=TrainingConfig(max_steps=5))
    recipes = {**RECIPES, SELECTED: cost(2e3)}
    pool = text(documents=10_000_000, tokens=1_000_000_000)
    found = recommend(case(recipes, config, whole_pool=cost(1e5), candidates=pool, corpus=None), ["--config=x.yaml"])
    commands = {recipe.name: recipe.command for recipe in found.recipes}
    assert commands[SELECTED] == (
        "dontstop tapt --config=x.yaml --select.kind=classifier --select.tokens=20000000 --training.epochs=10"
        " --training.learning_rate=0.0001 --training.max_steps=null"
    )
    assert all("'--select.pool_paths=[]'" in commands[name] for name in (TAPT, DAPT, BOTH))
    assert {recipe.name: recipe.votes for recipe in found.recipes}[SELECTED] == 5
    reasons = {remark.rule: remark.reason for remark in found.remarks}
    assert "select 200,000 documents (20.00 M tokens) by classifier" in reasons["selection_gains"]
    assert "1/100 of the work" in reasons["selection_is_cheap"]


def test_tapt_does_not_use_the_configured_length_of_dapt() -> None:
    config = Config(training=TrainingConfig(max_steps=500))
    found = {recipe.name: recipe.command for recipe in recommend(case(config=config), ["--config=x.yaml"]).recipes}
    assert found[TAPT].endswith("--training.epochs=100 --training.learning_rate=0.0001 --training.max_steps=null")
    assert found[DAPT] == "dontstop dapt --config=x.yaml"
