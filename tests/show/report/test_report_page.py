"""Tests the whole report: its sections for every kind of study, and its HTML page."""

import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from adapt.runner import Finished
from adapt.show.report.study import Entry, Study
from adapt.show.report.trainings import short_count
from tests.show.report.fake_studies import TASKS, Fake, fake_study, finished, loss_change, page_of

pytestmark = pytest.mark.heavy

VOID = {"meta", "link", "br", "img", "hr"}


class Checked(HTMLParser):
    """Parses a page, and fails if an end tag does not match its start tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def both(html: Path) -> tuple[str, str]:
    """Returns the text of the HTML page, and the Markdown report in its folder with all backslashes removed."""
    page = Checked(html.read_text(encoding="utf-8")).text
    return " ".join(page.split()), html.with_name("report.md").read_text(encoding="utf-8").replace("\\", "")


def test_the_page_needs_nothing_else(report):
    page = report.read_text(encoding="utf-8")
    found = Checked(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    outside = [
        v for name, v in found.attributes if name in ("src", "href", "xlink:href") and not (v or "").startswith("#")
    ]
    assert outside == []
    assert not re.search(r"url\((?!['\"]?#)|@import", page)


def test_ids_of_the_page_are_unique_and_links_lead_somewhere(report):
    attributes = Checked(report.read_text(encoding="utf-8")).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {v[1:] for name, v in attributes if name == "href" and v and v.startswith("#")} <= set(ids)


def test_the_page_is_for_light_and_dark_and_for_phones(report):
    page = report.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    light, dark = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    names = [set(re.findall(r"(--[\w-]+):", block)) for block in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= names[0] | {"--tone", "--shade", "--series"}


@pytest.mark.parametrize(
    "text",
    [
        "Overall: DAPT",
        "Holm",
        "loss on general text +0.21 nats per token",
        "52 of 139 test texts are also in train",
        "RoBERTa, seed 3: the model predicts one class only",
        "DAPT+TAPT†",
        "classes of dev or test that train does not have: CPR-13",
        "finetune[RAND-TAPT, acl_arc, 1]",
        "Scores on test examples whose text is not in train",
        "Loss on held-out text",
        "Shared frequent words",
        "32,151 documents",
        "2.13.0",
    ],
)
def test_page_and_markdown_say(report, text):
    page, markdown = both(report)
    assert text in page
    assert text in markdown


def test_every_finding_comes_first(report):
    page, markdown = both(report)
    assert page.index("Overall:") < page.index("Scores on test")
    assert markdown.index("Overall:") < markdown.index("Scores on test")


def test_markdown_tables_have_rows_of_one_width(report):
    text = report.with_name("report.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)
    assert len(tables) > 10
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def nothing(root: Path) -> Study:
    return Study("empty", "RoBERTa", [], ["dapt", "finetune[DAPT, acl_arc, 0]"])


def one_seed(root: Path) -> Study:
    return fake_study(root, ("RoBERTa", "DAPT"), ("acl_arc",), seeds=1)


def one_task(root: Path) -> Study:
    return fake_study(root, ("RoBERTa", "DAPT"), ("scierc",), seeds=3)


def no_baseline(root: Path) -> Study:
    return fake_study(root, ("DAPT", "TAPT"), ("scierc",), seeds=2)


def only_the_baseline(root: Path) -> Study:
    return fake_study(root, ("RoBERTa",), ("scierc",), seeds=2)


def only_pretraining(root: Path) -> Study:
    study = fake_study(root, ("RoBERTa",), ("scierc",), seeds=1)
    return replace(study, entries=[entry for entry in study.entries if entry.record.stage == "export"])


def made_worse(root: Path) -> Study:
    """Returns a study with a fine-tuned task, in which each training run raised the loss on its own text."""
    study = fake_study(root, ("RoBERTa", "DAPT"), ("scierc",), seeds=1)
    worse = asdict(loss_change("domain", 2.0, 2.5))

    def changed(export: Finished[Any]) -> Finished[Any]:
        metrics = {**export.record.metrics, "losses": {**export.record.metrics["losses"], "domain": worse}}
        return replace(export, record=replace(export.record, metrics=metrics))

    entries = [
        replace(entry, finished=changed(entry.finished)) if entry.record.stage == "export" else entry
        for entry in study.entries
    ]
    return replace(study, entries=entries)


def with_dropped(export: Finished[Any]) -> Finished[Any]:
    metrics = {**export.record.metrics, "dropped": {"short": 1200, "near copy": 30}}
    return replace(export, record=replace(export.record, metrics=metrics))


def dropped_documents(root: Path) -> Study:
    study = fake_study(root, ("RoBERTa", "DAPT"), ("scierc",), seeds=1)
    entries = [
        replace(entry, finished=with_dropped(entry.finished)) if entry.record.stage == "export" else entry
        for entry in study.entries
    ]
    return replace(study, entries=entries)


def without_predictions(root: Path) -> Study:
    study = fake_study(root, ("RoBERTa", "DAPT"), ("scierc",), seeds=3)
    for file in root.rglob("predictions.jsonl"):
        file.unlink()
    return study


def broken_curves(root: Path) -> Study:
    study = fake_study(root, ("RoBERTa", "DAPT"), ("scierc",), seeds=1)
    for file in (*root.rglob("curve.json"), *root.rglob("metrics.jsonl")):
        file.write_text("[{")
    return study


def folders_gone(root: Path) -> Study:
    study = fake_study(root, ("RoBERTa", "DAPT"), ("scierc",), seeds=1)
    for file in root.rglob("*.json*"):
        file.unlink()
    return study


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (nothing, ["Nothing to judge yet", "2 stages are missing", "finetune[DAPT, acl_arc, 0]"]),
        (one_seed, ["each recipe has one seed", "acl_arc: DAPT", "one seed", "95% CI"]),
        (one_task, ["scierc: DAPT", "p cannot fall below .10"]),
        (no_baseline, ["There is no finished run of the baseline", "Highest mean score"]),
        (only_the_baseline, ["Only the baseline, RoBERTa, has finished", "scierc"]),
        (
            only_pretraining,
            ["4 of 4 models are better than their start model on their own text", "Better than the model it"],
        ),
        (made_worse, ["scierc: DAPT", "the training made the model worse on this text. Try a lower"]),
        (
            only_pretraining,
            ["4 trained models · ", "Held-out loss on its domain fell from 2.10 to 1.60 nats per token", "2.10 → 1.60"],
        ),
        (dropped_documents, ["Dropped documents", "1,230", "short 1,200, near copy 30"]),
        (without_predictions, ["test examples are not resampled", "p cannot fall below .10"]),
        (broken_curves, ["scierc: DAPT", "one seed, so"]),
        (folders_gone, ["significance cannot be tested"]),
    ],
)
def test_every_study_gets_a_sensible_report(made, said, tmp_path):
    page, markdown = both(page_of(made(tmp_path / "study"), tmp_path / "report"))
    for text in said:
        assert text in page
        assert text in markdown
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", page + markdown)


def test_a_report_may_be_written_again(tmp_path):
    study = one_seed(tmp_path / "study")
    first = page_of(study, tmp_path / "report").read_text(encoding="utf-8")
    again = page_of(study, tmp_path / "report").read_text(encoding="utf-8")
    assert re.sub(r"written [\d\- :]+", "", first) == re.sub(r"written [\d\- :]+", "", again)


def test_names_are_text_and_never_markup(tmp_path):
    evil = "<script>alert('$1$ & -->')</script>|`**"
    fake = Fake(tmp_path / "study")
    task = fake.task("acl_arc")
    recipes = ("base", evil)
    entries = [
        Entry(
            "finetune",
            "finetune",
            {"recipe": r, "task": evil, "seed": "0"},
            finished(fake.finetune(r, task, seed, 0.7, 0)),
        )
        for r in recipes
        for seed in range(2)
    ]
    html = page_of(Study(evil, "base", entries, [evil], [evil]), tmp_path / "report")
    found = Checked(html.read_text(encoding="utf-8"))
    assert "script" not in found.tags
    assert evil in found.text
    markdown = html.with_name("report.md").read_text(encoding="utf-8")
    assert "<script>" not in markdown
    assert len(TASKS) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "\N{EN DASH}"), (999, "999"), (1234, "1.23 K"), (999_600, "1 M"), (999_500_000, "1 G"), (6.4e6, "6.4 M")],
)
def test_counts_are_rounded_to_three_digits(value, text):
    assert short_count(value) == text
