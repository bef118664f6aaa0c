"""Tests rounds of a sequential study with synthetic scores: which seeds run, which comparisons end, what is shown."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_run import ChainRun
from adapt.chain.chain_stages import Chain, ahead, build_chain, study
from adapt.chain.look_stage import Goal, SeedLook
from adapt.chain.sequential_study import compared_rows
from adapt.config import TaskConfig
from adapt.job import JOBS
from adapt.job.sequence_job import sequence_stages
from adapt.runner import Record, Store
from adapt.runner.ensure import ensure
from adapt.runner.record import plain_values
from adapt.show.blocks import Table
from adapt.show.renderers import render_text
from adapt.show.report.report_page import contents_of
from adapt.stage.context import Context
from adapt.stage.finetuning import Finetune, Finetuned
from adapt.statistics.seeds import SeedRounds
from adapt.support.errors import ConfigError
from tests.chain.test_searches import finish as finish_search
from tests.job.worlds import SPLITS, enter, sequence_world
from tests.runner.made import made_up

GAINS = {"base": 0.0, "up": 0.2, "same": 0.0, "down": -0.2}
Content = dict[str, Any]


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    """Returns the content of a chain file with four recipes, which differ in their learning rate."""
    config = enter(tmp_path, monkeypatch, *SPLITS, "a")
    for split in SPLITS:
        with Path(f"data/{split}.jsonl").open("a") as file:
            file.write('{"text": "another", "label": "c"}\n')
    return {
        "name": "study",
        "study": "sequential",
        "sequential": {"first_seeds": 4, "round_seeds": 4, "max_seeds": 12},
        "report": {"margin": {"points": 3}},
        "common": {
            "model.path": config.model.path,
            "storage.root": config.storage.root,
            "training.sequence_length": 64,
            "evaluation.sequence_length": 64,
        },
        "sets": {"recipe": {name: {"rate": rate} for name, rate in zip(GAINS, (1e-5, 2e-5, 3e-5, 4e-5), strict=True)}},
        "stages": {
            "finetune": {
                "job": "finetune",
                "for": "recipe",
                "task": {"name": "topics", **{split: f"data/{split}.jsonl" for split in SPLITS}},
                "finetune.learning_rate": "{recipe.rate}",
            }
        },
    }


def chain_of(content: Content, only: dict[str, list[str]] | None = None) -> ChainRun:
    Path("chain.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return ChainRun(read_chain("chain.yaml"), only or {})


def score_of(recipe: str, seed: int) -> float:
    return 0.5 + GAINS[recipe] + float(np.random.default_rng([seed, *recipe.encode()]).normal(0, 0.01))


def settle(stage: Finetune, store: Store, result: Finetuned) -> None:
    """Writes the record of a run that took one device-hour."""
    folder = store.folder(stage.kind, stage.name, stage.key)
    if not store.record_of(stage):
        folder.mkdir(parents=True)
        metrics, cost = plain_values(result), {"device_hours": 1.0}
        Record(stage.kind, stage.name, stage.key, 1, {}, {}, metrics, cost, {}, {}, {}, "2026-11-26", folder).save()


def finish(chain: Chain, with_looks: bool = True, score: Callable[[str, int], float] = score_of) -> None:
    """Writes records of a round's runs with synthetic scores, and runs the round's interim looks."""
    for goal in chain.goals:
        if isinstance(goal.stage, Finetune):
            seed = int(goal.values["seed"])
            made = score(goal.values["recipe"], seed)
            settle(goal.stage, chain.store, made_up(Finetuned, score=made, seed=seed, metric="macro_f1"))
        elif with_looks and isinstance(goal.stage, SeedLook):
            ensure(goal.stage, chain.store)


def seeds_of(chain: Chain, recipe: str) -> list[int]:
    goals = [goal for goal in chain.goals if isinstance(goal.stage, Finetune)]
    return [int(goal.values["seed"]) for goal in goals if goal.values["recipe"] == recipe]


def test_the_first_round_has_the_stages_of_a_chain_that_lists_the_seeds(content: Content) -> None:
    chain = chain_of(content).build()
    assert ahead(chain) == {"task": 1, "finetune": 16, "look": 1}
    plain = {name: value for name, value in content.items() if name not in ("study", "sequential")}
    plain["common"] = {**content["common"], "finetune.seeds": list(range(12))}
    Path("plain.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    listed = {goal.label: goal.stage.key for goal in build_chain(expand_chain(read_chain("plain.yaml"))).goals}
    runs = {goal.label: goal.stage.key for goal in chain.goals if isinstance(goal.stage, Finetune)}
    assert runs.items() <= listed.items()


def test_recipes_whose_comparison_has_ended_get_no_more_seeds(content: Content) -> None:
    run = chain_of(content)
    finish(run.build())
    second = run.build()
    assert second.sequential is not None
    assert second.sequential.next_look == 2
    finish(second)
    third = run.build()
    # The noise is 1 point. With 8 seeds, a gain of 20 points is significant, and a gain of 3 points can be ruled out.
    assert {recipe: len(seeds_of(third, recipe)) for recipe in GAINS} == {"base": 8, "up": 8, "same": 8, "down": 8}
    assert third.sequential is not None
    assert third.sequential.next_look is None
    assert {each.name: each.verdict for each in third.sequential.comparisons} == {
        "topics, up": "better",
        "topics, same": "no difference that matters",
        "topics, down": "worse",
    }
    assert not ahead(third)


@pytest.mark.parametrize(("first", "is_said"), [(3, True), (6, False)])
def test_the_plan_names_looks_that_can_find_no_difference(
    content: Content, first: int, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three seeds per side, no p is below .1, and three recipes need a p below .05 / 3."""
    monkeypatch.setattr(Finetune, "refuse_early", lambda stage: None)  # the model's files are empty
    content["sequential"] |= {"first_seeds": first, "spending": "pocock"}
    said = render_text(chain_of(content).plan().blocks())
    assert ("Look 1 cannot find that a recipe is better or worse" in " ".join(said.split())) is is_said


def test_the_baseline_goes_on_with_the_open_recipes(content: Content) -> None:
    content["report"]["margin"]["points"] = 0.01
    run = chain_of(content)
    for _ in range(2):
        finish(run.build())
    third = run.build()
    assert {recipe: len(seeds_of(third, recipe)) for recipe in GAINS} == {"base": 12, "up": 8, "same": 12, "down": 8}
    finish(third)
    last = run.build()
    assert not ahead(last)
    assert last.sequential is not None
    assert [(each.name, each.verdict) for each in last.sequential.comparisons if each.is_open] == [
        ("topics, same", "undecided")
    ]


def test_a_round_that_was_cut_off_goes_on_where_it_was(content: Content) -> None:
    run = chain_of(content)
    chain = run.build()
    half = [goal for goal in chain.goals if int(goal.values.get("seed", 9)) < 2]
    finish(Chain(half, chain.store, chain.resources, chain.notify))
    assert ahead(run.build()) == {"task": 1, "finetune": 8, "look": 1}
    finish(chain, with_looks=False)
    assert ahead(run.build()) == {"look": 1}


def test_a_margin_that_is_changed_repeats_the_looks_but_no_run(content: Content) -> None:
    finish(chain_of(content).build())
    content["report"]["margin"]["points"] = 4
    assert ahead(chain_of(content).build()) == {"look": 1}


def test_the_report_has_the_look_and_the_repeated_interval_of_each_comparison(content: Content) -> None:
    run = chain_of(content)
    for _ in range(2):
        finish(run.build())
    chain = run.build()
    found = study("study", "base", chain, run.file.margin)
    assert found.looks is not None
    assert [looked.look for looked in found.looks] == [1, 2]
    assert not any(entry.record.stage == "look" for entry in found.entries)
    verdict = next(section for section in contents_of(found)[1] if section.title == "Verdict")
    text = render_text(verdict.blocks)
    assert "Better at look 2 of 3, with 8 seeds per side: +20." in " ".join(text.split())
    (table,) = (block for block in verdict.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["topics, up", "topics, same", "topics, down"]
    seen = found.looks[1].found["up"]
    assert seen.low is not None
    assert seen.low < 0.2 < (seen.high or 0)


def test_plan_and_status_show_the_round_and_what_may_follow(content: Content) -> None:
    run = chain_of(content)
    first = run.status().sequential
    assert first is not None
    assert first.sentence().startswith("Round 1 of 3, with 4 seeds per side: 0 of 3 comparisons have ended")
    assert [each.stages for each in first.ahead] == [16, None, 48]
    finish(run.build())
    second = run.status().sequential
    assert second is not None
    smallest, expected, largest = second.ahead
    assert (smallest.stages, largest.stages) == (16, 32)
    assert smallest.device_hours is not None
    assert expected.device_hours is not None
    assert largest.device_hours is not None
    assert smallest.device_hours <= expected.device_hours <= largest.device_hours
    shown = render_text(run.status().blocks())
    assert "Round 2 of 3" in shown
    assert "largest" in shown


def test_seeds_of_a_set_also_vary_the_training_before(content: Content) -> None:
    """A round only contains the TAPT runs with the seeds of this round and earlier rounds."""
    content["sets"] = {"recipe": {"base": {"start": None}, "TAPT": {"start": "tapt[{seed}]"}}, "seed": [*range(10, 18)]}
    content["sequential"] = {"first_seeds": 3, "round_seeds": 5, "max_seeds": 8}
    task = content["stages"]["finetune"]["task"]
    content["stages"] = {
        "tapt": {"job": "tapt", "for": "seed", "seed": "{seed}", "task": task, "training.max_steps": 2},
        "finetune": {
            "job": "finetune",
            "for": ["recipe", "seed"],
            "from": "{recipe.start}",
            "seed": "{seed}",
            "finetune.seeds": ["{seed}"],
            "task": task,
        },
    }
    chain = chain_of(content).build()
    labels = [goal.label for goal in chain.goals]
    assert [label for label in labels if label.startswith("tapt")] == ["tapt[10]", "tapt[11]", "tapt[12]"]
    assert "finetune[TAPT, 12]" in labels
    assert "finetune[TAPT, 13]" not in labels
    content["stages"]["finetune"]["finetune.seeds"] = [0, 1]
    with pytest.raises(ConfigError, match="2 fine-tuning seeds"):
        chain_of(content).build()
    content["stages"]["finetune"]["finetune.seeds"] = ["{seed}"]
    content["sequential"]["max_seeds"] = 9
    with pytest.raises(ConfigError, match=r"base has 8 seeds on topics, but sequential\.max_seeds is 9"):
        chain_of(content).build()


def test_members_with_a_slash_do_not_nest_the_folders_of_looks(content: Content) -> None:
    """A bucket has only one level of folders per kind, so it would not find the record of a nested folder."""
    content["sets"]["model"] = ["FacebookAI/roberta-base"]
    content["stages"]["finetune"]["for"] = ["recipe", "model"]
    run = chain_of(content)
    finish(run.build())
    chain = run.build()
    (look, *_) = (goal.stage for goal in chain.goals if isinstance(goal.stage, SeedLook))
    assert look.row == "topics · model=FacebookAI/roberta-base"
    assert look.name == "topics · model=FacebookAI_roberta-base-1"
    assert chain.store.folder_of(look).parent == chain.store.root / "look"
    assert chain.store.record_of(look)
    assert replace(look, name="another").key == look.key


def test_listed_seeds_are_continued(content: Content) -> None:
    content["stages"]["finetune"]["finetune.seeds"] = [5, 3]
    assert seeds_of(chain_of(content).build(), "up") == [5, 3, 6, 7]


def test_only_cannot_leave_out_a_recipe(content: Content) -> None:
    with pytest.raises(ConfigError, match=r"leaves out finetune\[same\]"):
        chain_of(content, {"recipe": ["base", "up", "down"]}).build()


def test_the_report_has_the_looks_of_a_task_whose_search_has_finished(content: Content) -> None:
    Path("space.yaml").write_text("finetune.epochs: [1, 2]\n")
    entry = content["stages"].pop("finetune")
    content["sets"]["task"] = ["old", "new"]
    task = {"name": "{task}", **{split: f"data/{split}.jsonl" for split in SPLITS}}
    search = {"job": "finetune", "for": "task", "task": task, "tune": {"space": "space.yaml", "searcher": "grid"}}
    tuned = {**entry, "for": ["recipe", "task"], "task": task, "tuned": "search[{task}]"}
    content["stages"] = {"search": search, "finetune": tuned}
    old, whole = chain_of(content, {"task": ["old"]}), chain_of(content)
    (stage,) = old.build().searches
    finish_search(stage, old.build(), {"finetune.epochs": 2})
    for _ in range(2):
        finish(old.build())
    chain = whole.build()
    found = study("study", "base", chain, whole.file.margin)
    assert [(looked.row, looked.look) for looked in found.looks or ()] == [("old", 1), ("old", 2)]
    assert seeds_of(chain, "up") == list(range(8))
    assert "search[new]" in found.missing


def test_a_round_waits_for_the_searches_of_all_tasks(content: Content) -> None:
    Path("space.yaml").write_text("finetune.epochs: [1, 2]\n")
    entry = content["stages"]["finetune"]
    task = {**entry["task"], "name": "other"}
    search = {"job": "finetune", "task": task, "tune": {"space": "space.yaml", "searcher": "grid"}}
    content["stages"] |= {"search": search, "tuned": {**entry, "task": task, "tuned": "search"}}
    run = chain_of(content)
    finish(run.build())
    chain = run.build()
    assert not any(isinstance(goal.stage, SeedLook) for goal in chain.goals)
    assert seeds_of(chain, "up") == [0, 1, 2, 3]
    assert chain.sequential is not None
    assert chain.sequential.next_look == 1


def test_a_study_without_its_baseline_is_refused(content: Content) -> None:
    content["sets"]["recipe"] = {"up": {"rate": 1e-5}, "down": {"rate": 2e-5}}
    with pytest.raises(ConfigError, match="compares recipes with the baseline base"):
        chain_of(content).build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"study": "parallel"}, "write `study: sequential`"),
        ({"sequential": {"max_seeds": 1}}, "sequential.max_seeds is 1, but must be >=2"),
        ({"sequential": {"round_seeds": 0}}, "sequential.round_seeds is 0, but must be >=1"),
        ({"sequential": {"max_seeds": 3}}, "raise max_seeds"),
        ({"sequential": {"spending": "obrien"}}, "obrien_fleming"),
        ({"sequential": {"looks": 3}}, "unknown key looks in sequential"),
        ({"sequential": {"figures": ["averag"]}}, "average"),
        ({"sequential": {"figures": "average"}}, "sequential.figures takes list"),
        ({"sequential": {"figures": ["average", "average"]}}, "names a metric twice"),
    ],
)
def test_wrong_keys_are_refused_with_a_fix(content: Content, change: Content, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        chain_of({**content, **change})
    assert message in str(raised.value)


def test_options_need_the_key_study(content: Content) -> None:
    del content["study"]
    with pytest.raises(ConfigError, match="add `study: sequential`"):
        chain_of(content)


def test_a_round_that_exceeds_the_budget_does_not_start(content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round took 16 device-hours, so the second would need 16 more."""
    content["common"]["resources"] = {"budget": {"device_hours": 20}}
    run = chain_of(content)
    finish(run.build())
    monkeypatch.setattr("adapt.chain.chain_run.run_stages", lambda *_: pytest.fail("a stage was started"))
    chain = run.finish()
    assert chain.sequential is not None
    assert chain.sequential.next_look == 2


@pytest.mark.parametrize("has_task", [True, False])
def test_a_sequence_whose_only_task_is_in_the_section_task_has_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_task: bool
) -> None:
    config = sequence_world(tmp_path, monkeypatch)
    task = {"name": "cs", **{split: f"data/{split}.jsonl" for split in SPLITS}}
    config = replace(config, tasks=[], task=TaskConfig(**task) if has_task else TaskConfig())
    goals = [
        Goal("order", JOBS["sequence"], {"seed": str(seed)}, sequence_stages(Context.of(seeded)), seeded)
        for seed in (1, 2)
        for seeded in [replace(config, seed=seed)]
    ]
    rows = compared_rows(goals, SeedRounds(2, 1, 2, figures=["average"]))
    if has_task:
        assert [row.name for row in rows] == ["average"]
    else:
        with pytest.raises(ConfigError, match=r"order.* has no tasks"):
            list(rows)
