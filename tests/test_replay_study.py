"""Tests the study of replayed text: its recipes, and its tables on synthetic losses."""

import json
from collections import Counter
from pathlib import Path

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from benchmarks.replay_study import Losses, at_best, best_rates, by_rate, compared_table, differences, of_recipes, write

FILE = Path(__file__).parents[1] / "benchmarks" / "replay_study.yaml"


def test_arms_differ_only_in_the_text_that_they_replay() -> None:
    nodes = [node for node in expand_chain(read_chain(str(FILE), {})) if node.name == "adapted"]
    arms = Counter((node.config.mixture.replay_kind, bool(node.config.mixture.replay_paths)) for node in nodes)
    assert arms == {("files", False): 15, ("files", True): 15, ("self", False): 15}
    assert len({(node.config.training.learning_rate, node.config.seed) for node in nodes}) == 15
    same = {
        (node.config.training.max_steps, node.config.training.global_batch_size, node.config.mixture.replay_fraction)
        for node in nodes
    }
    assert len(same) == 1
    measured = {str(node.config.evaluation.general_paths) for node in nodes}
    trained = {path for node in nodes for path in node.config.mixture.replay_paths}
    assert len(measured) == 1
    assert measured.isdisjoint(trained)


SEEDS = ("1001", "1002", "1003", "1004", "1005")


def made(domain: float, general: float, seeds: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Returns losses that rise a little with each seed."""
    return {seed: {"domain": domain + i / 100, "general": general + i**2 / 100} for i, seed in enumerate(seeds)}


def test_the_first_seed_chooses_the_rates_and_the_others_are_compared(tmp_path: Path) -> None:
    found: Losses = {
        ("none", "3e-4"): made(4.0, 5.0, SEEDS[:1]),
        ("none", "1e-3"): made(3.0, 5.5, SEEDS),
        ("self", "3e-4"): made(4.0, 4.2, SEEDS),
        ("self", "1e-3"): made(3.5, 4.9, SEEDS[:1]),
    }
    best = best_rates(found)
    assert best == {"none": "1e-3", "self": "3e-4"}
    chosen = at_best(found, best)
    assert [*chosen["self"]] == [*SEEDS[1:]]
    compared = differences(chosen)
    assert compared["none", "self", "general"].difference == pytest.approx(1.3)
    assert compared["none", "self", "domain"].difference == pytest.approx(-1.0)
    assert len(by_rate(found, best).rows) == 4
    assert [row[:3] for row in of_recipes(chosen, best).rows] == [["none", "1e-3", "4"], ["self", "3e-4", "4"]]
    assert len(compared_table(compared).rows) == 2
    write(found, best, compared, tmp_path / "replay.json")
    content = json.loads((tmp_path / "replay.json").read_text())
    assert content["rates"] == best
    assert content["differences"]["none - self, general"]["difference"] == pytest.approx(1.3)
