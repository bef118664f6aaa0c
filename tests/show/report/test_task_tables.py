"""The figures in the tables of tasks equal figures that the tests compute with numpy."""

from dataclasses import replace

import numpy as np
import pytest

from adapt.evaluate.measurements import Estimate, MeasureChange, RetrievalChange, Retrieved
from adapt.runner.record import plain_values
from adapt.show.blocks import NONE
from adapt.show.report.study import Entry, Study
from adapt.show.report.study_results import collect
from adapt.show.report.task_comparison import compare_all
from adapt.show.report.task_tables import best_recipe, reliability, score_differences, score_tables, seeds
from adapt.show.report.trainings import retrieval_on_pairs
from tests.runner.made import made_up
from tests.show.report.fake_studies import RECIPES, Fake, fake_study, finished


@pytest.fixture(scope="module")
def compared(results):
    return compare_all(results)


def test_scores_are_means_and_deviations_in_points(results, compared):
    table = score_tables(results, compared)
    assert table.header == ["task", "RoBERTa (baseline)", "DAPT", "TAPT", "DAPT+TAPT†", "¬DAPT"]
    for row, cells in zip(results.rows, table.rows, strict=False):
        for recipe, cell in zip(results.recipes, cells[1:], strict=True):
            scores = [100 * one["score"] for one in row.groups[recipe].metrics]
            assert cell.text == f"{np.mean(scores):.1f}"
            assert cell.small == f"± {np.std(scores, ddof=1):.1f}"
            assert bool(cell.mark) == (recipe != "RoBERTa" and compared.tasks[row.name, recipe].significant)
        means = [float(cell.text) for cell in cells[1:]]
        assert max(means) in [float(cell.text) for cell in cells[1:] if cell.strong]
        assert sum(cell.strong for cell in cells[1:]) == 1


def test_the_average_is_of_the_rows_above(results, compared):
    table = score_tables(results, compared)
    columns = [[float(cell.text) for cell in row[1:]] for row in table.rows]
    assert columns[-1] == pytest.approx(np.mean(columns[:-1], axis=0), abs=0.11)


def test_a_recipe_that_misses_a_task_has_no_average(results, compared):
    rows = [replace(results.rows[0], groups={"RoBERTa": results.rows[0].groups["RoBERTa"]}), *results.rows[1:]]
    table = score_tables(replace(results, rows=rows), compared)
    assert table.rows[0][2].text == table.rows[-1][2].text == "\N{EN DASH}"
    assert table.rows[-1][1].text != "\N{EN DASH}"


def test_differences_have_a_row_for_each_comparison(results, compared):
    table = score_differences(results, compared)
    assert len(table.rows) == 12 + 4
    name, difference, interval, p, adjusted, ended, detectable, over = table.rows[0]
    one = compared.tasks["acl_arc", "DAPT"].comparison
    assert (name, over) == ("acl_arc, DAPT", "examples and seeds")
    assert float(difference.text.replace("\N{MINUS SIGN}", "-")) == pytest.approx(100 * one.difference, abs=0.05)
    assert " to " in interval
    assert float(p) <= float(adjusted)
    assert ended == "undecided"
    wide = replace(results, margin=1.0)
    assert [row[5] for row in score_differences(wide, compare_all(wide)).rows] == ["equal"] * len(table.rows)
    assert float(detectable) == pytest.approx(100 * one.detectable, abs=0.05)


@pytest.mark.parametrize(("number", "recipes"), [(3, 2), (4, 4)])
def test_no_difference_is_called_detectable_that_could_not_be_significant(tmp_path, number, recipes):
    """The smallest possible p is .1 with three seeds. With four, it is .029, or .086 after Holm's correction."""
    study = fake_study(tmp_path, recipes=list(RECIPES)[:recipes], tasks=["scierc"], seeds=number)
    made = collect(study)
    table = score_differences(made, compare_all(made))
    assert [dict(zip(table.header, row, strict=True))["detectable difference"] for row in table.rows] == [NONE] * (
        recipes - 1
    )


def test_every_seed_is_listed_and_degenerate_ones_are_marked(results):
    table = seeds(results)
    assert len(table.rows) == 15
    assert [cell.mark for cell in table.rows[0][1:]] == ["", "", "", "‡", ""]
    assert [cell.small for cell in table.rows[0][1:]] == [f"seed {seed}" for seed in range(5)]


def test_details_are_of_the_best_recipe(results):
    row = results.rows[2]
    folded = best_recipe(row, results)
    best = max(row.groups, key=lambda recipe: np.mean([one["score"] for one in row.groups[recipe].metrics]))
    assert folded.title == f"scierc: {results.label(best)}"
    classes, confusion, calibration = folded.blocks
    first = [one["per_class"]["COMPARE"]["f1"] for one in row.groups[best].metrics]
    assert classes.rows[0][3] == f"{100 * np.mean(first):.1f}"
    means = np.mean([one["confusion"] for one in row.groups[best].metrics], axis=0)
    assert confusion.rows[0][1].text == f"{means[0, 0]:.0f}"
    assert confusion.rows[0][1].shade == pytest.approx(means[0, 0] / means[0].sum())
    assert len(calibration.rows) == 5


def test_a_reliability_diagram_joins_the_seeds(results):
    row = results.rows[0]
    best = max(row.groups.values(), key=lambda group: group.tested().scores.mean())
    assert reliability(row, best, results) is None
    bins = [{"low": 0.6, "high": 2 / 3, "decisions": 4, "accuracy": 0.5, "confidence": 0.65}]
    entries = [
        replace(entry, finished=finished(replace(entry.record, metrics=entry.record.metrics | {"reliability": bins})))
        for entry in best.entries
    ]
    changed = replace(row, groups=row.groups | {best.recipe: replace(best, entries=entries)})
    assert "Reliability" in str(best_recipe(changed, results).blocks[-1])


def test_retrieval_is_a_table_of_the_trainings_that_measured_it(tmp_path):
    estimates = [Estimate(value, value - 0.01, value + 0.01) for value in (0.3, 0.5, 0.2)]
    of = [made_up(Retrieved, mean_cosine=value) for value in (0.9, 0.4)]
    of = [replace(of[0], isoscore=0.1), replace(of[1], isoscore=0.2, queries=1200, documents=3400)]
    measures = {"recall_at_10": MeasureChange(*estimates), "mrr": MeasureChange(*estimates)}
    change = RetrievalChange({**measures, "ndcg_at_10": MeasureChange(*estimates)}, *of)
    without = RetrievalChange({"mrr": MeasureChange(*estimates)}, replace(of[0], isoscore=None), of[1])
    fake = Fake(tmp_path)
    entries = [
        Entry(name, "dapt", {}, finished(fake.record("export", name, metrics=metrics)))
        for name, metrics in (
            ("paired", {"retrieval": plain_values(change)}),
            ("part", {"retrieval": plain_values(without)}),
            ("plain", {}),
        )
    ]
    (table,) = retrieval_on_pairs(Study("s", "paired", entries))
    assert table.header == ["model", "recall@10", "MRR", "nDCG@10", "mean cosine", "IsoScore", "queries"]
    first, second = table.rows
    assert [(cell.text, cell.small) for cell in first[1:4]] == [("0.300 → 0.500", "+0.200 (+0.190 to +0.210)")] * 3
    assert first[4:6] == ["0.900 → 0.400", "0.100 → 0.200"]
    assert (first[6].text, first[6].small) == ("1,200", "3,400 documents")
    assert [cell.text for cell in second[1:4]] == [NONE, "0.300 → 0.500", NONE]
    assert second[5] == NONE
    assert retrieval_on_pairs(Study("s", "plain", entries[2:])) == []
