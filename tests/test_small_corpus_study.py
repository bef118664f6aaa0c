"""Tests the study of small corpora: its texts, its table on synthetic results, and its chain file."""

import json
from pathlib import Path

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.evaluate.measurements import Estimate
from adapt.runner import Finished
from adapt.show.blocks import NONE, Cell
from adapt.show.report.study import Entry, Study
from adapt.stage.ensemble import Ensembled, EnsembleRow
from adapt.tuning.search_checks import read_space
from benchmarks.small_corpus_study import first_documents, losses
from tests.show.report.fake_studies import Fake

ROOT = Path(__file__).parents[1]
FILE = str(ROOT / "benchmarks" / "small_corpus_study.yaml")


def test_a_text_ends_with_the_document_that_reaches_its_size() -> None:
    lines = [json.dumps({"text": "é" * 5}) for _ in range(4)]  # each text has 10 bytes
    assert len([*first_documents(iter(lines), 15)]) == 2
    assert len([*first_documents(iter(lines), 20)]) == 2


def test_the_table_has_all_recipes_but_the_other_seeds(tmp_path: Path) -> None:
    loss, change = {"domain": Estimate(2.0), "general": Estimate(3.0)}, {"domain": Estimate(-0.1, -0.2, -0.05)}
    rows = [
        EnsembleRow("ensemble", "ensemble", loss, {**change, "general": Estimate(0.0)}, 3, 0.5),
        EnsembleRow("single[1]", "best", loss, {}, 1, None),
        EnsembleRow("single[2]", "member", loss, change, 1, 0.2),
        EnsembleRow("student", "other", loss, change, 1, 0.7),
    ]
    values = {"domain": "cs", "size": "1", "way": "plain"}
    record = Fake(tmp_path).record("ensemble", "e")
    done = Finished(record, Ensembled)
    vars(done)["result"] = Ensembled(rows, {"domain": 30, "general": 30}, 2.0)
    found = losses(Study("made up", "single", [Entry("ensemble", "ensemble", values, done)])).rows
    assert [row[3] for row in found] == ["mean of predictions", "best single model", "student"]
    assert found[0][:3] == ["cs", "1", "plain"]
    assert found[0][5] == Cell("-0.100", "-0.200 to -0.050")
    assert found[1][5] == Cell(NONE)
    assert found[1][8] == NONE


def test_each_recipe_has_a_search_of_equal_size_and_seeds_that_no_trial_had() -> None:
    nodes = {node.label: node for node in expand_chain(read_chain(FILE))}
    searches = [node for node in nodes.values() if node.is_search]
    assert len(searches) == 2 * 3 * 2
    assert len({(node.config.tune.samples, node.config.tune.bound) for node in searches}) == 1
    spaces = {space: {*read_space(str(ROOT / space))} for space in {str(node.config.tune.space) for node in searches}}
    first, second = sorted(spaces.values(), key=len)
    assert second - first == {"training.weight_decay"}
    trained = {node.config.seed for node in nodes.values() if node.name in ("single", "student")}
    assert not trained & {node.config.seed for node in searches}
    ensemble = nodes["ensemble[cs, 3, decayed]"]
    members = {f"single[cs, 3, decayed, {seed}]" for seed in (2001, 2002, 2003)}
    assert {*ensemble.compared.values()} == members | {"student[cs, 3, decayed]", "average[cs, 3, decayed]"}
    assert {*nodes["student[cs, 3, decayed]"].compared.values()} == members
    assert nodes["single[cs, 3, decayed, 2001]"].tuned == "search[cs, 3, decayed]"
