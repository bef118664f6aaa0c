"""Runs are sorted into tasks and recipes, and their predictions are counted or refused."""

import json

import pytest

from adapt.show.report.study import Entry, Study
from adapt.show.report.study_results import collect
from tests.show.report.fake_studies import RECIPES, TASKS, Fake, finished


def study_of(runs, baseline="base") -> Study:
    """Makes a study of fine-tuning runs on acl_arc, each given by its swept values and its record."""
    entries = [Entry("finetune", "finetune", values, finished(record), task="acl_arc") for values, record in runs]
    return Study("made", baseline, entries)


def values(recipe: str, seed: int, **more: str) -> dict[str, str]:
    return {"recipe": recipe, "task": "acl_arc", "seed": str(seed), **more}


def test_rows_are_tasks_and_the_baseline_comes_first(results):
    assert [row.name for row in results.rows] == list(TASKS)
    assert results.recipes == list(RECIPES)
    assert results.baseline == "RoBERTa"
    assert [one["seed"] for one in results.rows[0].groups["DAPT"].metrics] == [0, 1, 2, 3, 4]
    assert results.warnings == []


def test_counts_give_the_scores_on_record(results):
    for row in results.rows:
        for group in row.groups.values():
            assert group.predictions.tested.counts
            assert group.tested().scores == pytest.approx([one["score"] for one in group.metrics])
    clean = results.rows[0].groups["DAPT"]
    assert clean.tested(True).scores == pytest.approx([one["score_without_leaks"] for one in clean.metrics])
    assert [row.leaky for row in results.rows] == [True, False, False]


def test_recipes_that_have_read_the_test_text_are_marked(results):
    assert results.transductive == {"DAPT+TAPT"}
    assert [results.label(each) for each in ("TAPT", "DAPT+TAPT")] == ["TAPT", "DAPT+TAPT†"]


def test_what_else_was_swept_makes_rows(tmp_path):
    fake = Fake(tmp_path)
    task = fake.task("acl_arc")
    runs = [
        (values(recipe, 0, mode=mode), fake.finetune(recipe, task, 0, 0.7, 0, kind=mode))
        for mode in ("fine_tune", "lora")
        for recipe in ("better", "base")
    ]
    found = collect(study_of(runs))
    assert [row.name for row in found.rows] == ["acl_arc · mode=fine_tune", "acl_arc · mode=lora"]
    assert found.recipes == ["base", "better"]
    assert [row.task for row in found.rows] == ["acl_arc", "acl_arc"]


def test_without_a_sweep_the_entry_is_the_recipe(tmp_path):
    fake = Fake(tmp_path)
    runs = [({"seed": str(seed)}, fake.finetune("x", fake.task("acl_arc"), seed, 0.7, 0)) for seed in range(2)]
    found = collect(study_of(runs, baseline=""))
    assert (found.recipes, found.baseline, [row.name for row in found.rows]) == (["finetune"], None, ["acl_arc"])


def broken(lines, how):
    """Returns the lines of a file of predictions, damaged in the given way."""
    if how == "none":
        return None
    if how == "half a line":
        return lines[0][:10]
    if how == "others":
        return "".join(line.replace('"id": "', '"id": "x') for line in lines)
    if how in ("nothing", "other fields"):
        return "" if how == "nothing" else "{}\n" * len(lines)
    changed = [json.loads(line) | {"predicted": 0} for line in lines]
    return "".join(json.dumps(line) + "\n" for line in changed)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("none", "cannot be read"),
        ("half a line", "cannot be read"),
        ("nothing", "cannot be read"),
        ("other fields", "cannot be read"),
        ("others", "different examples"),
        ("other scores", "do not reproduce the recorded score"),
    ],
)
def test_predictions_that_cannot_be_used_leave_the_scores(tmp_path, how, said):
    fake = Fake(tmp_path)
    task = fake.task("acl_arc", leaked=10)
    records = [fake.finetune("base", task, seed, 0.7, 10) for seed in range(2)]
    file = records[1].path / "predictions.jsonl"
    text = broken(file.read_text().splitlines(keepends=True), how)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    found = collect(study_of([(values("base", seed), record) for seed, record in enumerate(records)]))
    group = found.rows[0].groups["base"]
    assert (group.predictions.tested.counts, group.predictions.ids) == ((), ())
    assert group.tested().scores == pytest.approx([record.metrics["score"] for record in records])
    assert group.tested(True).scores == pytest.approx([record.metrics["score_without_leaks"] for record in records])
    assert len(found.warnings) == 1
    assert said in found.warnings[0]


@pytest.mark.parametrize(
    ("metric", "labels", "truth", "predicted", "score"),
    [
        ("macro_f1", ["a", "b"], [[0], [0, 1], []], [[0], [1], []], (2 / 3 + 1) / 2),
        ("entity_f1", ["B-X", "I-X", "O"], [[0, 1, 2], [2, 0]], [[0, 1, 2], [0, 2]], 2 * 1 / 4),
    ],
)
def test_lists_of_labels_are_counted_too(tmp_path, metric, labels, truth, predicted, score):
    fake = Fake(tmp_path)
    task = fake.record("task", "t", metrics={"labels": {label: {} for label in labels}})
    measured = {"metric": metric, "mode": "fine_tune", "seed": 0, "score": score}
    record = fake.record("finetune", "x", {"task": task}, metrics=measured)
    lines = [
        {"id": str(n), "label": a, "predicted": b, "leaked": False}
        for n, (a, b) in enumerate(zip(truth, predicted, strict=True))
    ]
    (record.path / "predictions.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    found = collect(study_of([({"recipe": "base", "task": "t", "seed": "0"}, record)]))
    assert found.warnings == []
    assert found.rows[0].groups["base"].predictions.tested.counts


def test_a_training_that_saw_the_test_text_marks_its_recipe_without_an_export(tmp_path):
    fake = Fake(tmp_path)
    training = fake.record("train", "tapt", metrics={"transductive": True})
    run = fake.finetune("TAPT", fake.task("acl_arc"), 0, 0.7, 0, started={"start.training": training})
    assert collect(study_of([(values("TAPT", 0), run)])).transductive == {"TAPT"}
