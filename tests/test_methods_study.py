"""The study of all methods tunes each method with an equal budget, and reports results with fresh seeds."""

import math
from pathlib import Path

import pytest
import yaml

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.method.table import METHODS

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]


def test_every_method_is_tuned_with_the_same_budget_and_reported_on_fresh_seeds() -> None:
    nodes = expand_chain(read_chain(str(ROOT / "benchmarks" / "methods_study.yaml")))
    searches, reported = ([node for node in nodes if node.is_search is wanted] for wanted in (True, False))
    # `expand` needs a pre-LN model
    assert {node.config.method.kind for node in searches} == METHODS.keys() - {"expand"}
    assert {(node.config.tune.samples, tuple(node.config.tune.objectives)) for node in searches} == {
        (4, ("loss_average",))
    }
    files = [ROOT / node.config.tune.space for node in searches if node.config.tune.space]
    spaces = [yaml.safe_load(file.read_text()) for file in files]
    # Each search space has four combinations of values, so four trials try all of them.
    assert {math.prod(map(len, space.values())) for space in spaces} == {4}
    assert len({(node.config.training.max_steps, node.config.training.global_batch_size) for node in nodes}) == 1
    assert {node.config.seed for node in reported} == {1001, 1002, 1003}
    assert {node.tuned for node in reported} == {node.label for node in searches}
