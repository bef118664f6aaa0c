"""Tests the studies of replayed text: their recipes, and their tables on synthetic losses."""

from collections import Counter
from pathlib import Path

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import Node, expand_chain
from adapt.config import Config
from adapt.show.blocks import NONE, Cell
from adapt.show.report.study import Entry, Study
from benchmarks.replay_study import BEFORE, Losses, at_best, best_rates, by_rate, compared, losses, write
from tests.show.report.fake_studies import Fake, finished

FOLDER = Path(__file__).parents[1] / "benchmarks"


def nodes_of(name: str) -> list[Node]:
    return expand_chain(read_chain(str(FOLDER / name), {}))


def check_equal_settings(nodes: list[Node]) -> None:
    """Checks that recipes have equal rates, seeds, lengths and shares, and are measured on text that none replays."""
    configs: list[Config] = [node.config for node in nodes]
    settings = {
        recipe: sorted(
            (each.training.learning_rate, each.seed, each.training.max_steps, each.mixture.replay_fraction)
            for each in (node.config for node in nodes if node.values["recipe"] == recipe)
        )
        for recipe in (node.values["recipe"] for node in nodes)
    }
    assert len({tuple(each) for each in settings.values()}) == 1
    measured = {str(each.evaluation.general_paths) for each in configs}
    trained = {path for each in configs for path in each.mixture.replay_paths}
    assert len(measured) == 1
    assert measured.isdisjoint(trained)


def test_recipes_for_a_decoder_differ_only_in_the_text_that_they_replay() -> None:
    nodes = [node for node in nodes_of("replay_study.yaml") if node.name == "adapted"]
    recipes = Counter((node.config.mixture.replay_kind, bool(node.config.mixture.replay_paths)) for node in nodes)
    assert recipes == {("files", False): 15, ("files", True): 15, ("self", False): 15}
    check_equal_settings(nodes)


def test_recipes_for_an_encoder_differ_only_in_the_replayed_text_or_the_method() -> None:
    nodes = [node for node in nodes_of("encoder_replay_study.yaml") if node.name == "adapted"]
    recipes = Counter(
        (config.mixture.replay_kind, bool(config.mixture.replay_paths), config.method.kind, config.generate.generator)
        for config in (node.config for node in nodes)
    )
    assert recipes == {
        ("files", False, "plain", None): 12,
        ("files", True, "plain", None): 12,
        ("gibbs", False, "plain", None): 12,
        ("decoder", False, "plain", "general"): 12,
        ("files", False, "distill", None): 12,
    }
    check_equal_settings(nodes)
    assert {label for node in nodes for label in node.needed} == {"general"}
    assert all(node.needed for node in nodes if node.values["recipe"] == "decoder")


def test_both_studies_train_the_same_decoder() -> None:
    (base,) = (node.config for node in nodes_of("replay_study.yaml") if node.name == "base")
    (general,) = (node.config for node in nodes_of("encoder_replay_study.yaml") if node.name == "general")
    assert (base.seed, base.objective, base.mixture) == (general.seed, general.objective, general.mixture)
    for name in ("max_steps", "learning_rate", "warmup_fraction", "global_batch_size", "sequence_length"):
        assert getattr(base.training, name) == getattr(general.training, name)


SEEDS = ("1001", "1002", "1003", "1004", "1005")


def made(domain: float, general: float, seeds: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Returns losses that rise a little with each seed."""
    return {seed: {"domain": domain + i / 100, "general": general + i**2 / 100} for i, seed in enumerate(seeds)}


def test_the_first_seed_chooses_the_rates_and_the_others_are_compared(tmp_path: Path) -> None:
    before = {"domain": 6.0, "general": 4.0}
    found: Losses = {
        ("none", "3e-4"): made(4.0, 5.0, SEEDS[:1]),
        ("none", "1e-3"): made(3.0, 5.5, SEEDS),
        ("self", "3e-4"): made(4.0, 4.2, SEEDS),
        ("self", "1e-3"): made(3.5, 4.9, SEEDS[:1]),
    }
    best = best_rates(found, SEEDS[0])
    assert best == {"none": "1e-3", "self": "3e-4"}
    chosen = at_best(found, best, SEEDS[0])
    assert [*chosen["self"]] == [*SEEDS[1:]]
    assert len(by_rate(found, best, SEEDS[0]).rows) == 4
    start, none, own = compared(before, chosen, best, ["none", "real"]).rows
    assert start == [BEFORE, NONE, NONE, "6.000", NONE, NONE, "4.000", NONE, NONE]
    assert none[:5] == ["none", "1e-3", "4", "3.025", Cell(NONE)]
    assert [str(cell.text) for cell in own[4:] if isinstance(cell, Cell)] == ["+1.000", NONE, "-1.300", NONE]
    write(before, found, tmp_path / "replay.csv")
    lines = (tmp_path / "replay.csv").read_text().splitlines()
    assert lines[:3] == ["recipe,rate,seed,domain,general", f"{BEFORE},,,6.0000,4.0000", "none,3e-4,1001,4.0000,5.0000"]
    assert len(lines) == 2 + 12


def test_losses_of_the_decoder_are_not_those_of_a_recipe(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    values = {"recipe": "real", "rate": "1e-3", "seed": "0"}
    entries = [
        Entry(name, "dapt", of, finished(fake.export(name, 1.0, after, 1.0)))
        for name, of, after in (("general", {}, (9.0, 6.0, 9.0, 6.0)), ("adapted", values, (4.8, 4.0, 4.1, 4.2)))
    ]
    before, found = losses(Study("made up", "none", entries))
    assert before == pytest.approx({"domain": 4.8, "general": 4.1})
    assert found == {("real", "1e-3"): {"0": pytest.approx({"domain": 4.0, "general": 4.2})}}
