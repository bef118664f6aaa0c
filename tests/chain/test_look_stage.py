"""Tests an interim look at sequences with synthetic results, and the report of its verdicts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from adapt.chain.look_stage import Goal, SeedLook
from adapt.config import Config
from adapt.job import JOBS
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.renderers import render_text
from adapt.show.report.look_texts import ending_text
from adapt.show.report.report_page import contents_of
from adapt.stage.domain_sequence import SequenceResult
from adapt.statistics.seeds import MARGIN, Ending, Looked, SeedRounds, Seen
from adapt.support.errors import ConfigError
from tests.show.report.fake_sequences import fake_sequences

ROUNDS = SeedRounds(4, 4, 8)


@dataclass(frozen=True, eq=False)
class Ran(Stage[SequenceResult]):
    """Replaces the stage of a sequence of domains. It never runs, because the tests write its record."""

    kind = "sequence"

    name: str

    def what(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def run(self, folder: Path, done: Done) -> Outcome[SequenceResult]:
        raise NotImplementedError


def looked(folder: Path, figure: str, look: int = 2) -> tuple[Looked, Any]:
    """Runs an interim look at three methods with eight seeds and two orders. Returns the result and the study."""
    study = fake_sequences(folder)
    entries = [
        entry
        for entry in study.entries
        if entry.record.stage == "sequence" and entry.record.metrics["mode"] == "continual"
    ]
    runs: dict[str, Goal] = {}
    records: dict[str, Record] = {}
    for entry in entries:
        stage = Ran(entry.label)
        runs[entry.label] = Goal(entry.name, JOBS["sequence"], entry.values, stage, Config())
        records[stage.key] = entry.record
    methods = {
        next(value for name, value in entry.values.items() if name not in ("order", "seed")) for entry in entries
    }
    stage = SeedLook(figure, runs, None, figure, figure, look, ROUNDS, MARGIN, study.baseline, len(methods) - 1)
    return stage.run(folder, Done(records)).result, study


@pytest.mark.parametrize(("figure", "ended"), [("forgetting", "better"), ("loss_forgetting", "better")])
def test_a_look_at_sequences_compares_pairs_of_seeds(tmp_path: Path, figure: str, ended: str) -> None:
    """DAS forgets less than the baseline, so its metric is lower. Lower values of both metrics are better."""
    found, _ = looked(tmp_path, figure)
    assert set(found.found) == {"DAS", "EWC"}
    seen = found.found["DAS"]
    assert seen.difference < 0
    assert seen.conclusion == ended
    assert found.margin == (MARGIN.nats if figure.startswith("loss") else MARGIN.share)
    assert found.significant >= 1


def test_the_report_of_sequences_has_the_repeated_interval(tmp_path: Path) -> None:
    found, study = looked(tmp_path, "forgetting")
    shown = replace(study, looks=[found])
    verdict = next(section for section in contents_of(shown)[1] if section.title == "Verdict")
    text = " ".join(render_text(verdict.blocks).split())
    assert "Better at look 2 of 2, with 8 pairs of seeds" in text


def test_a_figure_that_a_method_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not measured for"):
        looked(tmp_path, "against_one")


def test_a_study_that_ends_undecided_says_how_many_seeds_decide() -> None:
    looked = Looked("topics", "", 2, [4, 8], 0.04, 0.01, 1, 0, 0, "pocock", {})
    open_one = Seen(0.01, -0.005, 0.025, 0.006, 0.1, 0.04, "open", ["seeds"], pairs=8)
    last = ending_text(Ending(open_one, looked), lambda value: f"{value:+.3f}")
    assert re.search(r"no further look is planned; a new study needs about \d+ seeds per side for a verdict$", last)
    few_examples = replace(open_one, over=["examples", "seeds"], fixed=0.0055)
    last = ending_text(Ending(few_examples, looked), lambda value: f"{value:+.3f}")
    assert last.endswith("no number of seeds gives a verdict: a new study needs more test examples or a wider margin")
    before = ending_text(Ending(open_one, replace(looked, look=1)), lambda value: f"{value:+.3f}")
    assert before.endswith("more seeds follow")
