"""Tests that the shipped chain files have the intended settings. Nothing is run, because there is no data."""

from pathlib import Path

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import Node, expand_chain
from adapt.method.table import METHODS

pytestmark = pytest.mark.heavy

RECIPES = Path(__file__).parents[2] / "jobs" / "recipes"
CHAINS = sorted(file.name for file in RECIPES.glob("*.yaml") if "\nstages:" in file.read_text())
NEEDED = {
    "forgetting.yaml": {"corpus": "c.jsonl", "general": "g.jsonl", "steps": "5"},
    "small_corpus.yaml": {"corpus": "c.jsonl", "general": "g.jsonl"},
}


def nodes_of(name: str) -> dict[str, Node]:
    return {node.label: node for node in expand_chain(read_chain(str(RECIPES / name), NEEDED.get(name, {})))}


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_can_be_read_and_has_its_baseline(name: str) -> None:
    chain = read_chain(str(RECIPES / name), NEEDED.get(name, {}))
    assert nodes_of(name)
    assert not chain.sets.get("recipe") or not chain.baseline or chain.baseline in chain.sets["recipe"]


def test_neighbours_are_those_of_tables_8_and_9() -> None:
    nodes = nodes_of("neighbours.yaml")
    nearest = {label: node.config.select for label, node in nodes.items() if node.name == "nearest"}
    assert {select.kind for select in nearest.values()} == {"knn"}
    assert {select.per_example for select in nearest.values()} == {50, 150, 500}
    assert nodes["random[acl_arc]"].selected == "nearest[50NN, acl_arc]"
    assert nodes["random[acl_arc]"].config.select.kind == "random"
    assert nodes["knn_tapt[500NN, chemprot]"].selected == "nearest[500NN, chemprot]"
    starts = {
        node.values["recipe"]: node.start
        for node in nodes.values()
        if node.values.get("task") == "chemprot" and node.name == "finetune"
    }
    assert starts == {
        "TAPT": "tapt[chemprot]",
        "RAND-TAPT": "rand_tapt[chemprot]",
        **{f"{number}NN-TAPT": f"knn_tapt[{number}NN, chemprot]" for number in (50, 150, 500)},
        "DAPT": "dapt[biomed]",
    }


def test_all_kinds_of_selection_take_the_same_number_of_tokens() -> None:
    nodes = [node for node in nodes_of("selection_kinds.yaml").values() if node.job.name == "select"]
    assert {node.config.select.tokens for node in nodes} == {5_000_000}
    kinds = [node.config.select.kind for node in nodes if node.values["task"] == "scierc"]
    assert {"random", "dsir", "classifier", "knn", "tsds"} < {kind for kind in kinds if isinstance(kind, str)}


def test_all_methods_are_tuned_equally_and_compared_with_fresh_seeds() -> None:
    nodes = nodes_of("tuned.yaml")
    searches = [node for node in nodes.values() if node.is_search]
    assert len(searches) == 4
    assert len({(node.config.tune.samples, node.config.tune.searcher) for node in searches}) == 1
    assert nodes["tapt[l2sp, scierc]"].tuned == "search[l2sp, scierc]"
    assert nodes["finetune[TAPT-L2SP, scierc]"].start == "tapt[l2sp, scierc]"
    seen = {seed for node in searches for seed in (node.config.seed, *node.config.finetune.seeds)}
    fresh = [node for node in nodes.values() if node.name in ("tapt", "finetune")]
    assert not seen & {node.config.seed for node in fresh if node.name == "tapt"}
    assert not seen & {seed for node in fresh if node.name == "finetune" for seed in node.config.finetune.seeds}


def test_searches_have_the_number_of_trials_that_the_study_states() -> None:
    searches = {label: node.config.tune for label, node in nodes_of("searches.yaml").items() if node.is_search}
    assert {label: tune.samples for label, tune in searches.items()} == {
        **{f"search_tapt[{task}]": 24 for task in ("acl_arc", "scierc")},
        **{f"search_knn[{task}]": 12 for task in ("acl_arc", "scierc")},
        **{f"search_replay[{domain}]": 12 for domain in ("cs", "biomed")},
    }
    for label, tune in searches.items():
        assert ("losses.general.after" in tune.objectives) == ("replay" in label)


def test_the_recipe_of_methods_contains_all_methods_for_its_model() -> None:
    kinds = {node.config.method.kind for node in nodes_of("methods.yaml").values()}
    assert {*METHODS} - kinds == {"expand"}


def test_parts_are_tried_per_domain_separate_and_shared() -> None:
    nodes = [node.config for node in nodes_of("methods.yaml").values() if node.name == "parts"]
    seen = {(c.method.kind, c.sequence.mode, c.method_options.per_domain) for c in nodes}  # type: ignore[union-attr]
    ways = {("separate", True), ("continual", False)}
    assert seen == {(kind, *way) for kind in ("adapters", "prompt", "prefix") for way in ways}


def test_the_recipe_of_small_corpora_searches_first_and_keeps_what_its_law_varies() -> None:
    nodes = nodes_of("small_corpus.yaml")
    tune = nodes["search"].config.tune
    assert tune.bound is not None
    assert tune.bound.metric == "losses.general.change"
    assert (tune.objectives[0], tune.space) == ("losses.domain.after", "small_corpus")
    repeats = [node for node in nodes.values() if node.name == "repeats"]
    assert len({node.config.training.epochs for node in repeats}) >= 4
    assert {node.keep for node in repeats} == {("training.epochs", "mixture.replay_fraction")}
    members = {f"member[{seed}]" for seed in range(2001, 2005)}
    assert {*nodes["student"].compared} == {*nodes["average"].compared} == members
    assert {"student", "average"} < {*nodes["ensemble"].compared}
    seeds = {node.config.seed for node in nodes.values() if node.name == "member"}
    assert not seeds & {nodes["search"].config.seed, *tune.fresh_seeds, nodes["student"].config.seed}
