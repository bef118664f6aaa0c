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
    assert recipes == {("files", False): 36, ("files", True): 36, ("self", False): 36}
    check_equal_settings(nodes)


def test_recipes_for_an_encoder_differ_only_in_the_replayed_text_or_the_method() -> None:
    nodes = [node for node in nodes_of("encoder_replay_study.yaml") if node.name == "adapted"]
    recipes = Counter(
        (config.mixture.replay_kind, bool(config.mixture.replay_paths), config.method.kind, config.generate.generator)
        for config in (node.config for node in nodes)
    )
    assert recipes == {
        ("files", False, "plain", None): 66,
        ("files", True, "plain", None): 66,
        ("gibbs", False, "plain", None): 66,
        ("decoder", False, "plain", "general"): 66,
        ("files", False, "distill", None): 66,
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


def test_differences_are_marked_after_correction_for_all_differences_of_the_table() -> None:
    """With n seeds, p is at least 2^(1 - n), and three recipes have six differences: 8 seeds are enough, 7 are not."""
    for seeds in (7, 8):
        names = tuple(map(str, range(seeds)))
        of = {"none": made(3.0, 5.0, names), "real": made(3.2, 4.0, names), "self": made(3.0, 4.5, names)}
        of["self"]["0"]["domain"] += 0.001  # equal but for this: not significant
        noise = {name: {"domain": i % 3 / 1000, "general": i % 4 / 1000} for i, name in enumerate(names)}
        chosen = {
            recipe: {
                seed: {text: loss + noise[seed][text] * (recipe == "real") for text, loss in losses_.items()}
                for seed, losses_ in runs.items()
            }
            for recipe, runs in of.items()
        }
        rows = compared({"domain": 6.0, "general": 6.0}, chosen, dict.fromkeys(chosen, "1e-3"), ["none", "real"]).rows
        marks = {str(row[0]): [cell.mark for cell in row if isinstance(cell, Cell)] for row in rows[2:]}
        star = "*" if seeds == 8 else ""
        assert marks == {"real": [star, "", star, ""], "self": ["", star, star, star]}


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
