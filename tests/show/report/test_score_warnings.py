"""Tests that the report warns of problems with scores, and gives no warnings for a study without problems."""

from dataclasses import replace

import pytest

from adapt.show.report.report_page import warnings
from adapt.show.report.study import Entry, Study
from adapt.show.report.study_results import collect
from tests.show.report.fake_studies import Fake, finished


def said(study: Study) -> list[str]:
    return [f"{each.head}: {each.text}" for each in warnings(study, collect(study))]


def runs(fake: Fake, seeds: int = 2, **more) -> list[Entry]:
    task = fake.task("acl_arc")
    return [
        Entry("finetune", "finetune", {"recipe": recipe, "task": "acl_arc", "seed": str(seed)}, finished(one))
        for recipe in ("base", "other")
        for seed in range(seeds)
        for one in [fake.finetune(recipe, task, seed, 0.7, 0, **more)]
    ]


def test_a_clean_study_has_none(tmp_path):
    assert said(Study("clean", "base", runs(Fake(tmp_path)))) == []


@pytest.mark.parametrize(
    "text",
    [
        "Not run: 2 stages",
        "Transductive: DAPT+TAPT†",
        "acl_arc: 52 of 139 test texts are also in train",
        "acl_arc: RoBERTa, seed 3: the model predicts one class only. Its score is included in the means. If training "
        "ended early, set finetune.patience to null",
        "chemprot: classes of dev or test that train does not have: CPR-13",
        "chemprot: 3 of 600 texts of test were truncated",
        "scierc: 3 train texts occur again with another label",
        "scierc: 1 texts of test are empty",
    ],
)
def test_odd_things_are_said(study, text):
    assert any(each.startswith(text) for each in said(study))


def test_missing_seeds_and_other_versions_are_said(tmp_path):
    entries = runs(Fake(tmp_path))[:-1]
    last = entries[-1]
    entries[-1] = replace(last, finished=finished(replace(last.record, packages={"torch": "2.11.0"})))
    found = said(Study("uneven", "base", entries))
    assert found == [
        "acl_arc: other has 1 of 2 seeds.",
        "Versions: stages ran with different versions of torch: 2.13.0, 2.11.0.",
    ]


def test_a_model_whose_text_ended_before_its_training_did_is_named(tmp_path):
    fake = Fake(tmp_path)
    export = fake.export("dapt", 1.0, [2.0, 1.5, 2.0, 2.1], 3.0)
    cut = replace(export, metrics={**export.metrics, "cut_short": "the window was not reached"})
    entries = [*runs(fake), Entry("dapt", "dapt", {}, finished(cut))]
    assert "dapt: the window was not reached." in said(Study("short", "base", entries))


def test_text_that_the_tokenizer_reads_badly_is_named(tmp_path):
    fake = Fake(tmp_path)
    export = fake.export("dapt", 1.0, [2.0, 1.5, 2.0, 2.1], 3.0)
    spelled = replace(export, metrics={**export.metrics, "text_faults": ["the tokenizer spells the words"]})
    entries = [*runs(fake), Entry("dapt", "dapt", {}, finished(spelled))]
    assert "dapt: the tokenizer spells the words." in said(Study("badly", "base", entries))
