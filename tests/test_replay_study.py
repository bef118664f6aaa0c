"""Tests that the replay study compares real, self-generated and no general text at equal rates, lengths and seeds."""

from collections import Counter
from pathlib import Path

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain

FILE = Path(__file__).parents[1] / "benchmarks" / "replay_study.yaml"


def test_arms_differ_only_in_the_text_that_they_replay() -> None:
    nodes = [node for node in expand_chain(read_chain(str(FILE), {})) if node.name == "adapted"]
    arms = Counter((node.config.mixture.replay_kind, bool(node.config.mixture.replay_paths)) for node in nodes)
    assert arms == {("files", False): 9, ("files", True): 9, ("self", False): 9}
    assert len({(node.config.training.learning_rate, node.config.seed) for node in nodes}) == 9
    same = {
        (node.config.training.max_steps, node.config.training.global_batch_size, node.config.mixture.replay_fraction)
        for node in nodes
    }
    assert len(same) == 1
    measured = {str(node.config.evaluation.general_paths) for node in nodes}
    trained = {path for node in nodes for path in node.config.mixture.replay_paths}
    assert len(measured) == 1
    assert measured.isdisjoint(trained)
