"""Tests which fine-tuning runs a chain has whose fine-tuning is swept over a set `seed`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from adapt.chain.chain_run import ChainRun
from adapt.support.errors import ConfigError
from tests.job.worlds import SPLITS, enter

Content = dict[str, Any]
BASE = ["finetune[base, 10]", "finetune[base, 11]"]
TAPT = ["finetune[TAPT, 10]", "finetune[TAPT, 11]"]


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Content:
    """Returns the content of a chain file that fine-tunes a base model, and the models of two TAPT runs."""
    config = enter(tmp_path, monkeypatch, *SPLITS)
    return {
        "name": "seeds",
        "common": {
            "model.path": config.model.path,
            "storage.root": config.storage.root,
            "training": {"sequence_length": 64, "max_steps": 2},
            "evaluation.sequence_length": 64,
            "task": {"name": "topics", **{split: f"data/{split}.jsonl" for split in SPLITS}},
        },
        "sets": {"recipe": {"base": {"start": None}, "TAPT": {"start": "tapt[{seed}]"}}, "seed": [10, 11]},
        "stages": {
            "tapt": {"job": "tapt", "for": "seed", "seed": "{seed}"},
            "finetune": {"job": "finetune", "for": ["recipe", "seed"], "from": "{recipe.start}"},
        },
    }


def runs_of(content: Content, seeds: list[Any]) -> list[str]:
    """Builds the chain with these fine-tuning seeds, and returns the labels of its fine-tuning runs."""
    content["stages"]["finetune"]["finetune.seeds"] = seeds
    Path("chain.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    goals = [goal for goal in ChainRun.of("chain.yaml", {}, {}).build().goals if goal.stage.kind == "finetune"]
    assert len({goal.stage.key for goal in goals}) == len(goals)
    return [goal.label for goal in goals]


def test_each_member_may_have_its_own_fine_tuning_seed(content: Content) -> None:
    assert runs_of(content, ["{seed}"]) == BASE + TAPT


def test_a_run_that_all_members_share_counts_once(content: Content) -> None:
    """With one fine-tuning seed, the base model has one run, and each TAPT model has a run with a name of its own."""
    assert runs_of(content, [0]) == BASE[:1] + TAPT


def test_several_fine_tuning_seeds_per_member_are_refused(content: Content) -> None:
    """Both members would have the same two runs of the base model, and the report would count four runs."""
    with pytest.raises(ConfigError, match=r"finetune\[base, 10\] has 2 fine-tuning seeds for each member") as raised:
        runs_of(content, [0, 1])
    assert 'finetune.seeds: ["{seed}"]' in str(raised.value)


def test_another_name_of_the_set_allows_several_fine_tuning_seeds(content: Content) -> None:
    """Each member has its own row in the report, so no row counts a run twice, and rows may share runs."""
    content["sets"]["pretraining"] = content["sets"].pop("seed")
    content["sets"]["recipe"]["TAPT"]["start"] = "tapt[{pretraining}]"
    content["stages"]["tapt"] |= {"for": "pretraining", "seed": "{pretraining}"}
    content["stages"]["finetune"] |= {"for": ["recipe", "pretraining"], "finetune.seeds": [0, 1]}
    Path("chain.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    goals = ChainRun.of("chain.yaml", {}, {}).build().goals
    assert len([goal for goal in goals if goal.stage.kind == "finetune"]) == 8


def test_a_sequential_study_refuses_a_run_that_all_members_share(content: Content) -> None:
    content |= {"study": "sequential", "sequential": {"first_seeds": 2, "max_seeds": 2}}
    content["baseline"] = "base"
    assert runs_of(content, ["{seed}"]) == BASE + TAPT
    with pytest.raises(ConfigError, match=r"base has 1 seeds on topics") as raised:
        runs_of(content, [0])
    assert '`seed: "{seed}"` and `finetune.seeds: ["{seed}"]`' in str(raised.value)
