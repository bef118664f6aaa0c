"""Tests `benchmarks/sentence_study.py` on synthetic records, and the pairs from `benchmarks/sentence_pairs.py`."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.chain.chain_file import read_chain
from adapt.chain.chain_nodes import expand_chain
from adapt.evaluate.measurements import Estimate, MeasureChange, RetrievalChange, Retrieved
from adapt.evaluate.retrieval import QUERIES_FILE
from adapt.show.report.study import Entry, Study
from benchmarks import sentence_study
from benchmarks.sentence_pairs import pairs_of
from benchmarks.sentence_study import BASE, arms, differences, measured_in, rates

FILE = Path(__file__).parents[1] / "benchmarks" / "sentence_study.yaml"
GAINS = {("MLM", "low"): 0.02, ("MLM", "high"): 0.05, ("TSDAE", "low"): 0.2, ("TSDAE", "high"): 0.1}
QUERIES = 60


class Fake:
    """A finished stage with a record of its inputs and a result."""

    def __init__(self, folder: Path, before: np.ndarray, after: np.ndarray) -> None:
        self.inputs = {}
        for part, values in (("before", before), ("after", after)):
            (folder / part).mkdir(parents=True)
            content = {name: values.tolist() for name in ("recall_at_10", "mrr", "ndcg_at_10")}
            (folder / part / QUERIES_FILE).write_text(json.dumps(content))
            self.inputs[f"retrieved.{part}"] = {"path": str(folder / part)}
        same = Estimate(0.0)
        of = [Retrieved(*[float(values.mean())] * 3, 0.9, 0.1, QUERIES, 9, "mean") for values in (before, after)]
        self.retrieval = RetrievalChange({"ndcg_at_10": MeasureChange(same, same, same)}, *of)

    @property
    def record(self) -> "Fake":
        return self

    @property
    def result(self) -> "Fake":
        return self


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Returns a study in which each arm gains a fixed amount over the base, plus noise that depends on the seed."""
    rng, entries = np.random.default_rng(0), []
    base = {split: rng.uniform(0.1, 0.5, QUERIES) for split in ("dev", "test")}
    for (arm, rate), gain in GAINS.items():
        for seed in ("0", "1", "2"):
            for split, before in base.items():
                after = before + gain + rng.normal(0, 0.01, QUERIES)
                made: Any = Fake(tmp_path / arm / rate / seed / split, before, after)
                entries.append(Entry(arm, "dapt", {"rate": rate, "seed": seed, "split": split}, made))
    return Study("made up", "", entries)


def test_rates_are_chosen_on_dev_and_arms_compared_on_test(study: Study) -> None:
    found = measured_in(study)
    assert {arm: found.rate(arm) for arm in ("MLM", "TSDAE", BASE)} == {"MLM": "high", "TSDAE": "low", BASE: "-"}
    assert [row[:2] for row in arms(found).rows] == [[BASE, "-"], ["MLM", "high"], ["TSDAE", "low"]]
    by_name = {str(row[0]): row[3] for row in differences(found).rows}
    assert list(by_name) == ["MLM - base", "TSDAE - base", "TSDAE - MLM"]
    for name, gain in (("MLM - base", 0.05), ("TSDAE - base", 0.2), ("TSDAE - MLM", 0.15)):
        assert float(by_name[name].text) == pytest.approx(gain, abs=0.005)  # type: ignore[union-attr]
    assert len(rates(found).rows) == 5


def test_the_measures_of_each_run_are_written(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.csv"
    monkeypatch.setattr(sys, "argv", ["sentence_study", "chain.yaml", "--csv", str(file)])
    monkeypatch.setattr(sentence_study, "read_finished", lambda arguments: (read_chain(str(FILE)), study))
    sentence_study.main()
    assert "Differences between arms" in capsys.readouterr().out
    rows = list(csv.DictReader(file.open()))
    assert len(rows) == (3 * len(GAINS) + 1) * 2  # three seeds per arm and rate, the base model, and two splits
    run = measured_in(study).queries["TSDAE"]["low"]["test"]["1"]
    [row] = [row for row in rows if [*row.values()][:4] == ["TSDAE", "low", "1", "test"]]
    assert {measure: float(row[measure]) for measure in run} == {name: values.mean() for name, values in run.items()}


def test_the_chain_has_every_arm_with_equal_tokens() -> None:
    nodes = expand_chain(read_chain(str(FILE), {}))
    arms_of = {name: [node for node in nodes if node.name == name] for name in ("MLM", "TSDAE", "MLM+TSDAE", "first")}
    assert {name: len(of) for name, of in arms_of.items()} == {"MLM": 24, "TSDAE": 24, "MLM+TSDAE": 24, "first": 3}
    tokens = {name: {node.config.training.max_tokens for node in of} for name, of in arms_of.items()}
    assert tokens["MLM"] == tokens["TSDAE"] == {2 * half for half in tokens["MLM+TSDAE"]}
    assert tokens["MLM+TSDAE"] == tokens["first"]
    assert {node.config.objective.kind for node in arms_of["MLM+TSDAE"]} == {"tsdae"}


def test_pairs_are_the_question_and_the_abstract() -> None:
    lines = [json.dumps({"text": text}) for text in ("Is it so? Yes. Why? Because.", "no question")]
    assert list(pairs_of(lines)) == [{"query": "Is it so?", "positive": "Yes. Why? Because."}]
