"""Tests which recipes are advised for which evidence, and by which rules."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.advise import advice
from adapt.advise.advice import VOTES, recommend
from adapt.advise.evidence import AS_IT_IS, BOTH, DAPT, SELECTED, TAPT, ModelFacts
from adapt.advise.findings import RULES, Case
from adapt.config import (
    AdviceConfig,
    Config,
    FinetuneConfig,
    MethodConfig,
    ModelConfig,
    ObjectiveConfig,
    PhaseConfig,
    SelectConfig,
    TrainingConfig,
)
from adapt.objective.table import OBJECTIVES
from adapt.support.paths import recipe_file
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


def test_a_single_recipe_is_not_ranked() -> None:
    alone, several = recommend(case({DAPT: cost(1e3)}, tasks=[]), []), recommend(case(), [])
    assert alone._sentence() == "Try DAPT: it is the only recipe for this configuration, and has +0 votes."
    assert "it ranks highest of 4 recipes with +2 votes and takes about" in several._sentence()


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
    verdicts = {"tapt_gains": "does not hold", "both_are_best": "undecided"}
    changed = [replace(rule, checked=verdicts.get(rule.name)) for rule in RULES]
    monkeypatch.setattr(advice, "RULES", changed)
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


def test_commands_train_a_discriminator_by_replaced_token_detection() -> None:
    """The objective rtd refuses model.head and text that is selected from a pool."""
    recipes = {**RECIPES, SELECTED: cost(2e3)}
    found = recommend(case(recipes, candidates=POOL, model=ELECTRA, has_head=False), []).recipes
    options = {recipe.name: recipe.command.split()[2:3] for recipe in found}
    assert options[TAPT] == options[DAPT] == options[BOTH] == ["--objective.kind=rtd"]
    assert options[AS_IT_IS] == []
    assert options[SELECTED] == ["--model.head=new"]
    assert not any("--model.head" in recipe.command for recipe in found if recipe.name != SELECTED)


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
    assert (
        "select 200,000 documents (20.00 M tokens) from the pool with select.kind classifier"
        in reasons["selection_gains"]
    )
    assert "1/100 of the FLOPs" in reasons["selection_is_cheap"]


def test_tapt_does_not_use_the_configured_length_of_dapt() -> None:
    config = Config(training=TrainingConfig(max_steps=500))
    found = {recipe.name: recipe.command for recipe in recommend(case(config=config), ["--config=x.yaml"]).recipes}
    assert found[TAPT].endswith("--training.epochs=100 --training.learning_rate=0.0001 --training.max_steps=null")
    assert found[DAPT] == "dontstop dapt --config=x.yaml"


BY_NAME = {rule.name: rule for rule in RULES}
CLOSE, DISTANT = {"overlap": 0.5, "general_overlap": 0.4}, {"overlap": 0.4, "general_overlap": 0.4}
POOL = text(documents=1_000_000, tokens=100_000_000)
CHEAP = {**RECIPES, SELECTED: cost(2e3)}
PLAIN = Config(finetune=FinetuneConfig(seeds=[0, 1, 2]))


def configured(**sections: Any) -> Config:
    """Returns the configuration of the default case, with the given sections replaced."""
    return replace(case().config, **sections)


MODERN, DECODER = ModelFacts("modernbert"), ModelFacts("llama", is_decoder=True)
ELECTRA = ModelFacts("electra", is_detector=True)
DEBERTA_3 = ModelFacts("deberta-v2", is_detector=True)
NEW_HEAD = configured(model=ModelConfig(head="new"))
PHASES = configured(training=TrainingConfig(phases=[PhaseConfig(steps=1)]))
STABLE = configured(training=TrainingConfig(optimizer="stable_adamw"))
ALL_EPOCHS = configured(finetune=FinetuneConfig(patience=None))
COLD = configured(training=TrainingConfig(warmup_steps=0))
RTD = ObjectiveConfig("rtd")

SPEAKS: list[tuple[str, Case, Case]] = [
    ("tapt_gains", case(), case(tasks=[])),
    ("tapt_is_cheap", case({**RECIPES, DAPT: cost(11e3)}), case({**RECIPES, DAPT: cost(10.9e3)})),
    ("selection_gains", case(candidates=POOL), case()),
    ("selection_gains", case(candidates=POOL), case(candidates=POOL, tasks=[])),
    ("selection_gains", case(candidates=POOL), case(candidates=text())),
    ("selection_is_cheap", case(CHEAP, candidates=POOL, whole_pool=cost(11e3)), case(CHEAP, candidates=POOL)),
    (
        "selection_is_cheap",
        case(CHEAP, candidates=POOL, whole_pool=cost(10e3)),
        case(CHEAP, candidates=POOL, whole_pool=cost(9.9e3)),
    ),
    ("pool_is_too_small", case(candidates=text()), case(candidates=POOL)),
    ("pool_is_too_small", case(candidates=text()), case()),
    ("domain_is_near", case(tasks=[task(**CLOSE)]), case(tasks=[task(**DISTANT)])),
    (
        "domain_is_near",
        case(tasks=[task(**CLOSE)] * 2 + [task(**DISTANT)]),
        case(tasks=[task(**CLOSE), task(**DISTANT)]),
    ),
    ("domain_is_near", case(tasks=[task(**CLOSE)]), case(tasks=[task(overlap=0.9)])),
    ("domain_is_far", case(tasks=[task(**DISTANT)]), case(tasks=[task(**CLOSE)])),
    ("domain_is_far", case(tasks=[task(**DISTANT)]), case()),
    ("domain_is_new", case(general=text(loss=1.8)), case(general=text(loss=1.95))),
    ("domain_is_known", case(general=text(loss=1.95)), case(general=text(loss=1.8))),
    ("domain_is_known", case(general=text(loss=2.5)), case()),
    ("both_are_best", case(), case(tasks=[])),
    ("both_are_best", case(), case(corpus=None)),
    ("both_are_best", case(tasks=[task(**CLOSE)]), case(tasks=[task(**DISTANT)])),
    ("corpus_is_small", case(corpus=text(bytes=4_900_000)), case(corpus=text(bytes=5_000_000))),
    ("corpus_is_small", case(corpus=text(bytes=4_900_000)), case(corpus=text(bytes=None))),
    ("corpus_is_small", case(corpus=text(bytes=10)), case(corpus=text(bytes=10), tasks=[])),
    ("pool_is_curated", case(pool=text()), case()),
    ("tasks_are_apart", case(tasks=[task(), task(name="other")]), case()),
    ("cheap_answers_first", case(general=text()), case()),
    ("cheap_answers_first", case(general=text(), tasks=[]), case(general=text(), corpus=None)),
    ("dapt_forgets", case(config=PLAIN, general=text()), case(general=text())),
    ("dapt_forgets", case(config=PLAIN, general=text()), case(config=PLAIN)),
    ("words_are_cut", case(general=text(fertility=0.9)), case(general=text(fertility=0.95))),
    ("task_is_small", case(config=PLAIN, tasks=[task(examples=1999)]), case(config=PLAIN, tasks=[task(examples=2000)])),
    ("task_is_small", case(config=PLAIN, tasks=[task(examples=100)]), case(tasks=[task(examples=100)])),
    ("steps_are_few", case(tasks=[task(examples=256)]), case(tasks=[task(examples=257)])),
    ("steps_are_few", case(tasks=[task(examples=100)]), case(config=ALL_EPOCHS, tasks=[task(examples=100)])),
    ("texts_leak", case(tasks=[task(leaked=1)]), case()),
    ("head_is_missing", case(config=configured(model=ModelConfig(head="new"))), case()),
    ("head_is_missing", case(has_head=False), case()),
    ("domain_is_new", case(general=text(loss=1.8)), case(general=text(loss=1.8), config=NEW_HEAD)),
    ("domain_is_new", case(general=text(loss=1.8)), case(general=text(loss=1.8), has_head=False)),
    ("vectors_are_kept", case(model=ModelFacts("bert", is_sentence_model=True)), case(model=ModelFacts("bert"))),
    ("phases_are_published", case(model=MODERN), case(model=ModelFacts("bert"))),
    ("phases_are_published", case(model=MODERN), case(model=MODERN, config=PHASES)),
    ("detour_may_help", case(model=MODERN), case(model=MODERN, config=PHASES)),
    ("detour_may_help", case(model=MODERN), case(model=MODERN, corpus=None)),
    ("detour_may_help", case(model=MODERN), case(model=ModelFacts("deberta-v2"))),
    ("optimizer_differs", case(model=ModelFacts("bert")), case(model=ModelFacts("roberta"))),
    ("optimizer_differs", case(model=MODERN), case(model=MODERN, config=STABLE)),
    ("optimizer_differs", case(model=ModelFacts("deberta-v2")), case(model=DEBERTA_3)),
    ("optimizer_differs", case(model=ModelFacts("qwen")), case(model=ModelFacts("distilbert"))),
    ("documents_are_padded", case(way="padded"), case()),
    ("documents_are_padded", case(way="by length"), case()),
    ("replaced_tokens_fit", case(model=ELECTRA), case(model=ModelFacts("bert"))),
    ("replaced_tokens_fit", case(model=DEBERTA_3), case(model=ModelFacts("deberta-v2"))),
    ("replaced_tokens_fit", case(model=ELECTRA), case(model=ELECTRA, config=configured(objective=RTD))),
    ("instructions_are_forgotten", case(model=ModelFacts("llama", is_instruct=True)), case()),
    ("decoder_is_rewarmed", case(model=DECODER, config=PLAIN), case(model=DECODER)),
    ("decoder_is_rewarmed", case(model=DECODER, config=COLD), case(model=DECODER)),
    ("decoder_is_rewarmed", case(model=DECODER, config=PLAIN), case(config=PLAIN)),
]


@pytest.mark.parametrize(("name", "there", "not_there"), SPEAKS)
def test_a_rule_gives_a_finding_only_if_its_condition_is_met(name: str, there: Case, not_there: Case) -> None:
    found = BY_NAME[name].judge(there)
    assert found
    assert found.reason
    assert BY_NAME[name].judge(not_there) is None


def test_every_rule_has_a_case() -> None:
    assert {name for name, *_ in SPEAKS} == set(BY_NAME)
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_names_a_source_with_figures(rule) -> None:
    assert any(mark in rule.source for mark in ("DSP table", "arXiv", "findings-emnlp"))
    assert any(character.isdigit() for character in rule.source)
    assert rule.strength in VOTES


def test_reasons_contain_the_figures_of_the_case() -> None:
    near = BY_NAME["domain_is_near"].judge(case(tasks=[task(overlap=0.472, general_overlap=0.347)]))
    assert near
    assert "toy 47.2% against 34.7%" in near.reason
    cheap = BY_NAME["tapt_is_cheap"].judge(case({**RECIPES, DAPT: cost(61e3)}))
    assert cheap
    # (2e3 - 1e3) / (61e3 - 1e3) = 1/60: the cost of fine-tuning, 1e3, is in both recipes and is not counted.
    assert "1/60" in cheap.reason
    leak = BY_NAME["texts_leak"].judge(case(tasks=[task(leaked=52, test=139)]))
    assert leak
    assert "toy 52 of 139" in leak.reason


def test_cheap_measures_are_advised_before_a_method() -> None:
    das = Config(method=MethodConfig(kind="das"))
    for config, before in ((PLAIN, "before you use any method"), (das, "before you use method.kind das")):
        found = BY_NAME["cheap_answers_first"].judge(case(config=config, general=text()))
        assert found
        assert before in found.reason
        (recipe,) = re.findall(r"dontstop chain run (\w+)", found.reason)
        named = yaml.safe_load(Path(recipe_file(recipe)).read_text())["let"]
        assert all(name in named for name in re.findall(r"--(\w+)", found.reason))


def test_the_optimizer_of_pre_training_is_named_as_options() -> None:
    found = BY_NAME["optimizer_differs"].judge(case(model=ModelFacts("llama")))
    assert found
    assert found.reason.endswith("--training.beta2 0.95 --training.epsilon 1e-05")
    modern = BY_NAME["optimizer_differs"].judge(case(model=MODERN))
    assert modern
    assert modern.reason.endswith("--training.optimizer stable_adamw")
    first = BY_NAME["optimizer_differs"].judge(case(model=ModelFacts("deberta")))
    assert first
    assert first.reason.endswith("--training.beta2 0.999")
    assert BY_NAME["optimizer_differs"].judge(case(model=ModelFacts("mistral"))) is None  # nothing is published


def test_a_discriminator_is_not_given_a_new_head() -> None:
    found = BY_NAME["head_is_missing"].judge(case(model=ELECTRA, has_head=False))
    assert found
    assert "model.head" not in found.reason
    again = BY_NAME["replaced_tokens_fit"].judge(case(model=ELECTRA, config=NEW_HEAD))
    assert again
    assert "objective.kind rtd, without model.head" in again.reason


def test_the_checkpoint_of_modernberts_stable_phase_must_be_converted() -> None:
    found = BY_NAME["phases_are_published"].judge(case(model=MODERN))
    assert found
    assert ".pt file, which must be converted to safetensors first" in found.reason


def test_recipes_and_fields_that_advice_names_exist() -> None:
    reasons = [found.reason for rule in RULES for _, fact, _ in SPEAKS if (found := rule.judge(fact))]
    recipes = {recipe for reason in reasons for recipe in re.findall(r"dontstop chain run (\w+)", reason)}
    assert recipes == {"causal_detour", "forgetting"}
    assert all(Path(recipe_file(recipe)).is_file() for recipe in recipes)
    kinds = {kind for reason in reasons for kind in re.findall(r"objective\.kind (\w+)", reason)}
    assert kinds == {"tsdae", "rtd"}
    assert kinds <= OBJECTIVES.keys()


def test_a_far_domain_votes_against_dapt_and_a_near_one_for_it() -> None:
    far = BY_NAME["domain_is_far"].judge(case(tasks=[task(**DISTANT)]))
    near = BY_NAME["domain_is_near"].judge(case(tasks=[task(**CLOSE)]))
    assert far
    assert near
    assert (far.speaks_for, far.speaks_against) == ((), (DAPT, BOTH))
    assert (near.speaks_for, near.speaks_against) == ((DAPT, BOTH), ())
    small = BY_NAME["corpus_is_small"].judge(case(corpus=text(bytes=1)))
    assert small
    assert (small.speaks_for, small.speaks_against) == ((TAPT,), (DAPT, BOTH))


def test_without_tasks_all_votes_are_for_or_against_dapt() -> None:
    found = BY_NAME["domain_is_new"].judge(case(tasks=[], general=text(loss=1.0)))
    assert found
    assert found.speaks_for == (DAPT,)


def test_the_plain_case_meets_only_two_conditions() -> None:
    """The default case meets only the conditions of the rules `tapt_gains` and `both_are_best`.

    Each case above adds or removes one rule.
    """
    quiet = {rule.name for rule in RULES if rule.judge(case())}
    assert quiet == {"tapt_gains", "both_are_best"}


CLAIMS = {
    "tapt_gains": "TAPT helps end tasks",
    "domain_is_near": "DAPT helps end tasks",
    "domain_is_far": "An irrelevant domain helps less",
    "both_are_best": "DAPT then TAPT helps",
    "dapt_forgets": "DAPT forgets general text",
}
"""The claim on the page of findings that each rule makes, keyed by the rule's name."""


@pytest.mark.parametrize(("name", "claim"), CLAIMS.items())
def test_a_rule_has_the_verdict_of_the_page_of_findings(name: str, claim: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "science" / "index.md").read_text("utf-8")
    (verdict,) = re.findall(rf"^\|{claim}\|.*\|(.+?)\|.*\|$", page, re.MULTILINE)
    assert BY_NAME[name].checked == verdict.strip("*")
