"""Tests the study of small corpora: its texts, its table on synthetic results, and its chain file."""

import csv
import json
from dataclasses import replace
from math import prod
from pathlib import Path

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.evaluate.measurements import Estimate
from adapt.runner import Finished
from adapt.show.blocks import NONE, Cell
from adapt.show.renderers import markdown_table
from adapt.show.report.study import Entry, Study
from adapt.stage.ensemble import Ensembled, EnsembleRow
from adapt.tuning.search_checks import read_space
from adapt.tuning.search_stage import Searched, TrialRow
from benchmarks.small_corpus_study import COLUMNS, decay_gains, first_documents, losses, raw_losses, summary
from tests.show.report.fake_studies import Fake, finished

ROOT = Path(__file__).parents[1]
LEARNT = {"training.learning_rate"}
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
    raw = raw_losses(Study("made up", "single", [Entry("ensemble", "ensemble", values, done)]))
    assert raw == [
        ("cs", "1", "plain", name, "", "2.0000", "3.0000", "-0.1000", "-0.2000", "-0.0500")
        for name in ("ensemble", "student")
    ]
    assert [row[3] for row in found] == ["mean of predictions", "best single model", "student"]
    assert found[0][:3] == ["cs", "1", "plain"]
    assert found[0][5] == Cell("-0.100", "-0.200 to -0.050")
    assert found[1][5] == Cell(NONE)
    assert found[1][8] == NONE


def test_the_raw_losses_have_the_trials_that_did_not_fail(tmp_path: Path) -> None:
    trials = [
        TrialRow(0, {}, "a", {"losses.domain.after": Estimate(2.5)}),
        TrialRow(1, {"training.weight_decay": 0.2}, "b", {"losses.domain.after": Estimate(2.25)}),
        TrialRow(2, {"training.weight_decay": 1}, "c", {}, "out of memory"),
    ]
    done = Finished(Fake(tmp_path).record("search", "s"), Searched)
    vars(done)["result"] = Searched("dapt", {"losses.domain.after": "min"}, trials, 1, [1], 0.1, 4, 0)
    values = {"domain": "cs", "size": "1", "way": "decayed"}
    assert raw_losses(Study("made up", "single", [Entry("search", "dapt", values, done)])) == [
        ("cs", "1", "decayed", "trial: unchanged", "", "2.5000", "", "", "", ""),
        ("cs", "1", "decayed", "trial: training.weight_decay 0.2", "", "2.2500", "", "", "", ""),
    ]


def test_the_summary_has_shares_of_the_gain_of_the_ensemble_and_of_weight_decay() -> None:
    def row(
        domain: str, search: str, model: str, seed: str, loss: float, change: float | None = None
    ) -> dict[str, str]:
        changes = ("", "", "") if change is None else (f"{change}", f"{change - 0.1}", f"{change + 0.3}")
        return dict(zip(COLUMNS, (domain, "1", search, model, seed, f"{loss}", "3", *changes), strict=True))

    rows = []
    for domain, student in (("cs", -0.05), ("pubmed", -0.1)):
        rows += [row(domain, "plain", "single", seed, loss) for seed, loss in (("1", 2.0), ("2", 2.1))]
        rows += [row(domain, "decayed", "single", seed, loss) for seed, loss in (("1", 2.1), ("2", 2.2))]
        rows += [row(domain, "plain", "ensemble", "", 1.8, -0.2), row(domain, "plain", "student", "", 1.9, student)]
        rows += [row(domain, "plain", "weight average", "", 1.85, -0.15), row(domain, "plain", "base", "", 5.0, 3.0)]
        rows += [row(domain, "decayed", "ensemble", "", 1.7, -0.4)]
    made = summary([*rows, row("cs", "plain", "single", "1", 2.0) | {"size": "3"}]).rows  # 3 MB is not finished
    change = Cell("-0.200", "-0.300 to +0.100")
    assert made[0] == ["computer science, 1 MB", "5.000", "2.000", change, "75%", "25%", Cell("+0.100")]
    assert made[1][4:6] == ["75%", "50%"]
    assert (made[2][0], *made[2][4:6]) == ("mean", "75%", "38%")  # 37.5%


def test_the_guide_shows_the_recorded_losses() -> None:
    with (ROOT / "docs" / "science" / "data" / "small_corpus.csv").open() as file:
        table = summary(list(csv.DictReader(file)))
    page = (ROOT / "docs" / "guide" / "small-corpora.md").read_text()
    shown = page.partition("<!-- losses: begin -->")[2].partition("<!-- losses: end -->")[0].strip()
    assert shown == markdown_table(replace(table, title=""))


def test_tuned_weight_decay_is_compared_by_seed(tmp_path: Path) -> None:
    fake, entries = Fake(tmp_path), []
    for way, gain in (("plain", 0.0), ("decayed", 0.1), ("undecayed", 0.3)):
        for number, seed in enumerate(("2001", "2002", "2003")):
            after = 1.5 - gain + number / 10
            record = fake.export(f"{way}-{seed}", 0.9, (2.0, after, 1.0, 1.2), 1.0)
            values = {"domain": "cs", "size": "1", "seed": seed}
            if way == "undecayed":
                entries.append(Entry(way, "dapt", values, finished(record)))
            else:
                entries.append(Entry("single", "dapt", {**values, "way": way}, finished(record)))
    rows = decay_gains(Study("made up", "single", entries)).rows
    assert [row[2:5] for row in rows] == [
        [f"decayed - {baseline}", text, "3"] for baseline in ("plain", "undecayed") for text in ("domain", "general")
    ]
    assert "-0.100" in str(rows[0][5])
    assert "+0.200" in str(rows[2][5])
    raw = raw_losses(Study("made up", "single", entries))
    assert raw[0] == ("cs", "1", "plain", "single", "2001", "1.5000", "1.2000", "", "", "")
    assert [row[2:5] for row in raw[6:]] == [("decayed", "undecayed", seed) for seed in ("2001", "2002", "2003")]


def test_each_recipe_has_a_search_of_equal_size_and_seeds_that_no_trial_had() -> None:
    nodes = {node.label: node for node in expand_chain(read_chain(FILE))}
    searches = [node for node in nodes.values() if node.is_search]
    assert len(searches) == 2 * 3 * 2
    for size in ("1", "3", "10"):
        plain, decayed = (nodes[f"search[cs, {size}, {way}]"] for way in ("plain", "decayed"))
        assert replace(plain.config.tune, space=None) == replace(decayed.config.tune, space=None)
        spaces = [read_space(str(ROOT / str(node.config.tune.space))) for node in (plain, decayed)]
        assert [{*space} for space in spaces] == [LEARNT, LEARNT | {"training.weight_decay"}]
        assert {prod(len(values.categories) for values in space.values()) for space in spaces} == {4}
        assert plain.config.training.epochs == decayed.config.training.epochs
        assert nodes[f"single[cs, {size}, plain, 2001]"].config.training.epochs == plain.config.training.epochs
    trained = {node.config.seed for node in nodes.values() if node.name in ("single", "student")}
    assert not trained & {node.config.seed for node in searches}
    ensemble = nodes["ensemble[cs, 3, decayed]"]
    members = {f"single[cs, 3, decayed, {seed}]" for seed in (2001, 2002, 2003)}
    assert {*ensemble.compared.values()} == members | {"student[cs, 3, decayed]", "average[cs, 3, decayed]"}
    assert {*nodes["student[cs, 3, decayed]"].compared.values()} == members
    assert nodes["single[cs, 3, decayed, 2001]"].tuned == "search[cs, 3, decayed]"
    assert nodes["undecayed[cs, 3, 2001]"].tuned == "search[cs, 3, decayed]"
    assert nodes["undecayed[cs, 3, 2001]"].config.training.weight_decay == 0.01
