"""Tests the sequential studies in benchmarks/, and the file with their results. Nothing is run."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_run import ChainRun
from adapt.chain.sequential_study import study_nodes
from benchmarks.few_labels import shuffled
from benchmarks.sequential import raw
from tests.show.report.fake_studies import fake_study

FILES = sorted(Path(__file__).parents[1].glob("benchmarks/study_*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recipes_have_equal_budgets_and_seeds_that_no_trial_had(file: Path) -> None:
    source = read_chain(str(file), {"data": "data"})
    assert source.rounds is not None
    nodes = study_nodes(source)
    searches = [node for node in nodes if node.is_search]
    assert len({(node.config.tune.searcher, node.config.tune.samples) for node in searches}) == 1
    assert not any(node.config.tune.fresh_seeds for node in searches)
    tried = {seed for node in searches for seed in (node.config.seed, *node.config.finetune.seeds)}
    for node in nodes:
        if node.name == "finetune":
            assert node.tuned
            assert len(node.config.finetune.seeds) == source.rounds.max_seeds
            assert not {*node.config.finetune.seeds} & (tried - {0})
        if node.name == "best":
            assert node.tuned
            assert node.config.seed not in tried
    recipes = {node.values["recipe"] for node in expand_chain(source) if "recipe" in node.values}
    assert source.baseline in recipes
    assert recipes == set(source.sets["recipe"])


def test_the_file_of_results_has_every_score(tmp_path: Path) -> None:
    found = fake_study(tmp_path)
    run = ChainRun(read_chain(str(FILES[0]), {"data": "data"}))
    content = json.loads(json.dumps(raw(run, found)))
    runs = [entry for entry in found.entries if entry.record.stage == "finetune"]
    assert sum(len(seeds) for recipes in content["scores"].values() for seeds in recipes.values()) == len(runs)
    assert content["sequential"]["max_seeds"] == 18


def test_a_part_of_a_split_has_the_classes_of_the_whole_split(tmp_path: Path) -> None:
    file = tmp_path / "dev.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps({"text": str(i), "label": "ab"[i >= 500]}) + "\n" for i in range(1000))
    part = shuffled(file)[:250]
    assert 95 < Counter(example["label"] for example in part)["a"] < 155
    assert part == shuffled(file)[:250]
