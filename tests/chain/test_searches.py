"""Tests of searches in chain files, and of stages that use a search's best trial. Nothing is trained."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.advise.regime import Regime
from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import Chain, ahead, build_chain, regimes_ahead, study, trainings_ahead
from adapt.evaluate.measurements import Estimate
from adapt.runner import Record
from adapt.show.blocks import Table, TextBlock
from adapt.stage.finetuning import Finetune
from adapt.stage.train import Train
from adapt.support.errors import ConfigError, DataError
from adapt.tuning.confirm import Confirm
from adapt.tuning.search_run import SearchAhead, check_search
from adapt.tuning.search_stage import Search, Searched, TrialRow
from tests.job.worlds import SPLITS, enter

TASK = {split: f"data/{split}.jsonl" for split in SPLITS}
BEST = {"training.learning_rate": 3e-3}


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the content of a chain file.

    For each method, the chain searches hyperparameters of TAPT. It then fine-tunes the model of the best trial, and
    runs TAPT with the best values and different seeds.
    """
    config = enter(tmp_path, monkeypatch, *SPLITS)
    Path("space.yaml").write_text("training.learning_rate: [1.0e-3, 3.0e-3]\n")
    return {
        "name": "study",
        "common": {
            "model.path": config.model.path,
            "storage.root": config.storage.root,
            "training": {"sequence_length": 64, "max_steps": 5},
            "evaluation.sequence_length": 64,
            "tune": {"samples": 2, "searcher": "grid", "objectives": ["dev_score"], "fresh_seeds": [21, 22]},
            "task": TASK,
        },
        "sets": {"recipe": {"one": {"kind": "plain"}, "two": {"kind": "l2sp"}}, "seed": [7, 8]},
        "stages": {
            "search": {
                "job": "tapt",
                "for": "recipe",
                "tune": {"space": "space.yaml"},
                "method.kind": "{recipe.kind}",
            },
            "winner": {"job": "finetune", "for": "recipe", "from": "search[{recipe}]", "finetune.seeds": [5]},
            "tapt": {
                "job": "tapt",
                "for": ["recipe", "seed"],
                "tuned": "search[{recipe}]",
                "method.kind": "{recipe.kind}",
                "seed": "{seed}",
            },
        },
    }


def chain_of(content: dict[str, Any], only: dict[str, list[str]] | None = None) -> Chain:
    Path("chain.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return build_chain(expand_chain(read_chain("chain.yaml"), only))


def finish(search: Search, chain: Chain, best: dict[str, Any]) -> None:
    """Writes the record of a search with two trials, without running it."""
    rows = [TrialRow(0, {}, "a", {"dev_score": Estimate(0.5)}), TrialRow(1, best, "b", {"dev_score": Estimate(0.6)})]
    found = Searched("tapt", {"dev_score": "max"}, rows, 1, [1], 0.0, 1, 0)
    folder = chain.store.folder(search.kind, search.name, search.key)
    folder.mkdir(parents=True)
    metrics = asdict(found)
    Record(search.kind, search.name, search.key, 1, {}, {}, metrics, {}, {}, {}, {}, "2026-11-23", folder).save()


def labels(chain: Chain) -> list[str]:
    return [goal.label for goal in chain.goals]


def test_stages_with_best_values_are_known_after_the_search(content: dict[str, Any]) -> None:
    chain = chain_of(content)
    assert labels(chain) == ["search[one]", "search[two]"]
    assert chain.later == [
        "search_confirm[one]",
        "search_confirm[two]",
        "winner[one]",
        "winner[two]",
        *(f"tapt[{one}, {seed}]" for one in ("one", "two") for seed in (7, 8)),
    ]
    assert study("study", "one", chain).missing == [*labels(chain), *chain.later]

    first, second = chain.searches
    assert first != second  # each method has its own search
    finish(first, chain, BEST)
    chain = chain_of(content)
    assert chain.searches == [second]
    assert labels(chain) == [
        "search[one]",
        "search_confirm[one]",
        "search[two]",
        "winner[one, 5]",
        "tapt[one, 7]",
        "tapt[one, 8]",
    ]
    assert chain.later == ["search_confirm[two]", "winner[two]", "tapt[two, 7]", "tapt[two, 8]"]
    finish(second, chain, {})  # an empty mapping means that the unchanged configuration was best
    assert chain_of(content).later == []


def test_best_values_replace_those_of_the_stage(content: dict[str, Any]) -> None:
    chain = chain_of(content)
    for search, best in zip(chain.searches, (BEST, {}), strict=True):
        finish(search, chain, best)
    goals = {goal.label: goal for goal in chain_of(content).goals}
    assert goals["tapt[one, 7]"].config.training.learning_rate == 3e-3
    assert goals["tapt[one, 7]"].config.seed == 7
    assert goals["tapt[two, 7]"].config.training.learning_rate == 1e-4  # 1e-4 is the job's default value
    winner = goals["winner[one, 5]"].stage
    assert isinstance(winner, Finetune)
    assert winner.start.training
    assert winner.start.training.config.training.learning_rate == 3e-3  # type: ignore[attr-defined]
    assert winner.seed == 5


def test_a_stage_keeps_its_own_values_of_named_fields(content: dict[str, Any]) -> None:
    content["stages"]["tapt"] |= {"keep": ["training.learning_rate"], "training.learning_rate": 7e-4}
    chain = chain_of(content)
    for search in chain.searches:
        finish(search, chain, {**BEST, "training.weight_decay": 0.5})
    kept = next(goal.config for goal in chain_of(content).goals if goal.label == "tapt[one, 7]")
    assert (kept.training.learning_rate, kept.training.weight_decay) == (7e-4, 0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"keep": ["seed"], "tuned": None}, "has `keep`, but does not use the best values of a search"),
        ({"keep": 3}, "`keep` is not a list of fields"),
        ({"keep": ["training.learning_rat"]}, "unknown key training.learning_rat"),
    ],
)
def test_wrong_fields_to_keep_are_refused(content: dict[str, Any], change: dict[str, Any], said: str) -> None:
    content["stages"]["tapt"] |= change
    with pytest.raises(ConfigError, match=said):
        chain_of(content)


def test_the_best_trial_of_a_search_is_run_with_fresh_seeds_and_then_tested(content: dict[str, Any]) -> None:
    chain = chain_of(content)
    finish(chain.searches[0], chain, BEST)
    confirm = next(goal.stage for goal in chain_of(content).goals if goal.label == "search_confirm[one]")
    assert isinstance(confirm, Confirm)
    for trials, rate in ((confirm.best, 3e-3), (confirm.as_it_is, 1e-4)):
        assert [*trials] == ["21", "22"]
        for seed, trial in trials.items():
            training: Any = trial.final.training  # type: ignore[attr-defined]
            assert (training.config.training.learning_rate, training.config.seed) == (rate, int(seed))
            ((run,),) = trial.runs.values()
            assert run.task.task.test == TASK["test"]

    content["common"]["tune"]["fresh_seeds"] = []
    assert "search_confirm[one]" not in labels(chain_of(content))
    assert "search_confirm[two]" not in chain_of(content).later


def test_a_missing_test_split_is_reported_before_the_search(content: dict[str, Any]) -> None:
    content["common"]["tune"]["fresh_seeds"] = []  # the stages `winner` and `tapt` set their own seeds
    assert chain_of(content).later
    Path(TASK["test"]).write_text("nobody reads this")
    chain_of(content)
    Path(TASK["test"]).unlink()
    with pytest.raises(DataError, match=r"task\.test: data/test\.jsonl matches no file"):
        chain_of(content)
    del content["stages"]["winner"], content["stages"]["tapt"]
    assert chain_of(content).searches


def test_a_search_starts_from_the_model_of_another_stage(content: dict[str, Any]) -> None:
    stages = content["stages"]
    first = {"job": "tapt", "for": "recipe", "training.max_steps": 3}
    search = {**stages["search"], "from": "first[{recipe}]"}
    chain = chain_of({**content, "stages": {"first": first, "search": search}})
    one = chain.searches[0]
    made = next(goal.stage for goal in chain.goals if goal.label == "first[one]")
    (start,) = one.inputs.values()
    assert start in made.inputs.values()
    assert one.trial({}).final.training.start.training == start  # type: ignore[attr-defined]
    assert one != chain_of(content).searches[0]


def test_plans_list_trainings_before_a_search_but_not_its_trials(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Train] = []
    monkeypatch.setattr(Train, "forecast", lambda self, records: looked.append(self))
    first = {"job": "tapt", "for": "recipe", "training.max_steps": 3}
    search = {**content["stages"]["search"], "from": "first[{recipe}]"}
    chain = chain_of({**content, "stages": {"first": first, "search": search}}, {"recipe": ["one"]})
    assert trainings_ahead(chain) == []
    assert [training.config.training.max_steps for training in looked] == [3]
    assert ahead(chain)["search"] == 1


def test_plans_name_the_regime_of_each_training(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    content["stages"] = {"first": {"job": "tapt", "for": "recipe", "method.kind": "{recipe.kind}"}}
    chain = chain_of(content)
    (unknown,) = regimes_ahead(chain)
    assert "not known until the text is prepared" in str(unknown)
    regimes = {"plain": Regime(1000, 500, 2.0), "l2sp": Regime(1000, 100_000, 1.0)}
    monkeypatch.setattr(Train, "regime", lambda self, records: regimes[self.config.method.kind])
    small, ample, table = regimes_ahead(chain)
    assert "first[one]: Regime: small text" in str(small)
    assert "first[two]: Regime: ample text" in str(ample)
    assert isinstance(table, Table)
    assert "weight decay" in {row[0] for row in table.rows}


def test_the_plan_shows_the_trials_without_reading_the_test_split(content: dict[str, Any]) -> None:
    Path("data/test.jsonl").write_text("nobody reads this")
    Path("space.yaml").write_text("finetune.learning_rate: [1.0e-3, 3.0e-3]\n")
    chain = chain_of({**content, "stages": {"search": {"job": "finetune", "tune": {"space": "space.yaml"}}}})
    trials = SearchAhead.of(chain.searches[0], chain.store)
    table, total = trials.blocks()
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [
        ["0", "unchanged"],
        ["1", "finetune.learning_rate 0.001"],
        ["2", "finetune.learning_rate 0.003"],
    ]
    assert total == TextBlock(trials.total())
    assert "3 trials will take" in trials.total()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no space": ({"search": {"job": "tapt", "tune": {"samples": 3}}}, r"search: tune\.space is empty"),
    "a space that is not there": ({"search": {"job": "tapt", "tune.space": "no.py"}}, "there is no file no.py"),
    "another job": ({"search": {"job": "tapt", "tune": {"space": "space.yaml", "job": "dapt"}}}, "tune.job is dapt"),
    "values of what searches nothing": (
        {"a": {"job": "tapt"}, "b": {"job": "tapt", "tuned": "a"}},
        "unknown key a in b in .*, tuned",
    ),
    "both": (
        {"a": {"job": "tapt", "tune.space": "space.yaml"}, "b": {"job": "tapt", "tuned": "a", "tune.space": "x"}},
        "b in .* has both `tune` and `tuned`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_searches_are_named(name: str, content: dict[str, Any]) -> None:
    stages, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as caught:
        chain_of({**content, "stages": stages})
    assert caught.value.fix


def test_a_space_that_cannot_work_is_refused_before_anything_runs(content: dict[str, Any]) -> None:
    Path("space.yaml").write_text("training.learning_rat: [1, 2]\n")
    chain = chain_of(content)
    with pytest.raises(ConfigError, match=r"unknown key training\.learning_rat in space.yaml"):
        check_search(chain.searches[0], chain.store)
