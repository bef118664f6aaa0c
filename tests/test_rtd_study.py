"""Tests the study of replaced-token detection on synthetic records: chosen rates, tables, and the chain file."""

from pathlib import Path

import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.show.blocks import Cell
from adapt.show.report.study import Entry, Study
from benchmarks.rtd_study import at_best, best_rates, by_rate, scores, trainings, write_scores
from tests.show.report.fake_studies import Fake, finished, loss_change

FILE = str(Path(__file__).parents[1] / "benchmarks" / "rtd_study.yaml")
DEV = {("mlm", "low"): 0.4, ("mlm", "high"): 0.5, ("rtd", "low"): 0.6, ("rtd", "high"): 0.3}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Returns a study in which seed 0 is best on dev at the high rate for MLM, and at the low rate for RTD.

    On test, and for seeds 1 and 2 on dev, it is the other way round.
    """
    fake, entries = Fake(tmp_path), []
    for (recipe, rate), dev in DEV.items():
        for seed in "012":
            values = {"recipe": recipe, "rate": rate, "task": "one", "seed": seed}
            metrics = {"score": 1 - dev, "dev_score": dev if seed == "0" else 1 - dev}
            record = fake.record("finetune", "-".join(values.values()), metrics=metrics)
            entries.append(Entry("finetune", "finetune", values, finished(record)))
    shared = finished(fake.record("finetune", "none", metrics={"score": 0.2, "dev_score": 0.2}))
    for rate in ("low", "high"):
        values = {"recipe": "none", "rate": rate, "task": "one", "seed": "0"}
        entries.append(Entry("finetune", "finetune", values, shared))
    losses = {"domain": loss_change("domain", before=4.0, after=3.0)}
    record = fake.record("export", "export", metrics={"losses": losses, "tokens": 2000, "device_seconds": 12.0})
    values = {"objective": "mlm", "rate": "low", "seed": "0"}
    entries.append(Entry("pretrain", "pretrain", values, finished(record)))
    return Study("made up", "none", entries)


def test_each_objective_is_tested_at_its_best_rate_on_dev(study: Study, tmp_path: Path) -> None:
    found = scores(study)
    assert best_rates(found) == {"mlm": "high", "rtd": "low", "none": "low"}
    assert ("none", "high") not in found  # the same run as at the low rate
    assert at_best(found, best_rates(found)).scores == {
        "mlm": {"one": {"1": 0.5, "2": 0.5}},
        "rtd": {"one": {"1": 0.4, "2": 0.4}},
    }
    rows = by_rate(found).rows
    assert rows[1] == ["mlm", "high", Cell("50.0", strong=True), "1"]
    assert rows[0][2] == Cell("40.0", strong=False)
    write_scores(found, tmp_path / "scores.csv")
    assert (tmp_path / "scores.csv").read_text().splitlines()[:3] == [
        "recipe,rate,task,seed,dev,test",
        "mlm,low,one,0,0.4,0.6",
        "mlm,low,one,1,0.6,0.6",
    ]
    assert trainings(study).rows == [["mlm", "low", "0", "2,000", "12", "3.000", ""]]


def test_both_objectives_have_equal_compute_and_rates() -> None:
    nodes = [node for node in expand_chain(read_chain(FILE)) if node.job.name == "dapt"]
    limits = {(node.config.training.max_flops, node.config.training.max_tokens) for node in nodes}
    assert limits == {(1e13, None)}
    by_kind = {
        kind: {n.config.training.learning_rate for n in nodes if n.config.objective.kind == kind}
        for kind in ("mlm", "rtd")
    }
    assert by_kind["mlm"] == by_kind["rtd"]
    assert len(nodes) == 2 * 4 * len(by_kind["rtd"])
