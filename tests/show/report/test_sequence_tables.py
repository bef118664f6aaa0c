"""The cost of a sequence is the sum of the costs in the records of its stages."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.runner.record import Record
from adapt.show.blocks import NONE
from adapt.show.report.sequence_runs import sequences_of
from adapt.show.report.sequence_tables import sequence_costs
from adapt.show.report.study import Entry, Study
from tests.show.report.fake_sequences import sequence
from tests.show.report.fake_studies import Fake, finished

DOMAINS = ("cs", "biomed", "news")


def ran(fake: Fake, method: str, mode: str, seed: int, hours: float, **figures: Any) -> Entry:
    """Makes a sequence whose training runs took `hours` each. Measurements between the runs took half an hour each."""
    name = f"{method} {seed}"
    metrics = {"flops": 2e12, "peak_memory_bytes": 3 * 2**30, **figures}
    made: dict[str, Record] = {}
    models: Mapping[str, str] = {}
    for place, domain in enumerate(DOMAINS):
        spent = {"device_seconds": hours * 3600}
        known = {**metrics, "parameters": metrics["parameters"] + place * metrics.get("grows", 0)}
        made[f"steps.{place}.training"] = fake.record("train", f"{name} {domain}", metrics=known, cost=spent)
        weights = {"config.json": 7, "model.safetensors": 2**20, "head.safetensors": place * 2**20}
        export = fake.record("export", f"{name} {domain}", metrics=known, cost=spent, outputs=weights)
        made[f"steps.{place}.export"], models = export, {**models, domain: str(export.path)}
        for when in (f"steps.{place}.past.fisher", *(["past.fisher"] if place == 2 else [])):
            if figures.get("measures"):
                made[when] = fake.record("fisher", f"{name} {when}", cost={"device_seconds": 1800})
    # The stage that prepares the text of earlier domains is an input of several steps. Its cost counts once.
    for place in range(DOMAINS.index("news") + 1):
        if figures.get("remembers"):
            made[f"steps.{place}.past.text"] = fake.record("texts", name, cost={"device_seconds": 1800})
    told = {**sequence(DOMAINS, mode, seed), "models": models}
    record = fake.record("sequence", name, made, metrics=told)
    return Entry("sequence", "das", {"method": method, "seed": str(seed)}, finished(record))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    fake = Fake(tmp_path)
    entries = [
        *(ran(fake, "NCL", "continual", seed, hours, parameters=4_000_000) for seed, hours in enumerate((1, 1, 7))),
        ran(fake, "EWC", "continual", 0, 1.5, parameters=4_000_000, measures=True, peak_memory_bytes=6 * 2**30),
        ran(fake, "ELLE", "continual", 0, 1, parameters=4_000_000, grows=1_000_000, flops=None, remembers=True),
        ran(fake, "ONE", "separate", 0, 1, parameters=4_000_000),
    ]
    return Study("in turn", "NCL", entries)


def shown(study: Study) -> dict[str, dict[str, tuple[str, str]]]:
    """Returns the table of costs: for each method and column, the cell's text and its line in small print."""
    table = sequence_costs(sequences_of(study))
    assert table
    return {
        str(row[0]): {title: (cell.text, cell.small) for title, cell in zip(table.header[1:], row[1:], strict=True)}
        for row in table.rows
    }


def test_time_is_that_of_trainings_and_of_what_is_measured_between_them(study: Study) -> None:
    time = {method: cells["device time"] for method, cells in shown(study).items()}
    assert time == {
        "NCL": ("3.0 hours", ""),  # the median over three seeds, which took 3, 3 and 21 hours
        "EWC": ("6.5 hours", "2.17"),  # 3 training runs x 1.5 hours + 4 measurements x 0.5 hours
        "ELLE": ("3.5 hours", "1.17"),
        "ONE": ("3.0 hours", "1.00"),
    }


def test_operations_are_added_up_and_memory_is_the_most(study: Study) -> None:
    cells = shown(study)
    assert cells["NCL"]["training FLOPs"] == ("6.00e+12", "")
    assert cells["ELLE"]["training FLOPs"] == (NONE, "")
    assert cells["EWC"]["peak memory"] == ("6.0 GiB", "2.00")


def test_what_is_left_is_the_last_model_or_all_models_of_their_own(study: Study) -> None:
    cells = shown(study)
    assert [cells[method]["parameters"] for method in ("NCL", "ELLE", "ONE")] == [
        ("4.0 M", ""),
        ("6.0 M", "1.50"),
        ("12.0 M", "3.00"),
    ]
    assert [cells[method]["size on disk"] for method in ("NCL", "ONE")] == [("3.0 MiB", ""), ("6.0 MiB", "2.00")]


def test_a_method_whose_records_are_gone_is_left_out(study: Study) -> None:
    for entry in study.entries:
        if entry.values["method"] == "EWC":
            (Path(entry.record.inputs["steps.1.training"]["path"]) / "stage.json").unlink()
    assert list(shown(study)) == ["NCL", "ELLE", "ONE"]
    gone = replace(study, entries=[entry for entry in study.entries if entry.values["method"] == "EWC"])
    assert sequence_costs(sequences_of(gone)) is None
