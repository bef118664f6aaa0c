"""Tests how a report shows searches: the gain, the trials, the importance of fields, and curves of the trials."""

from dataclasses import replace
from pathlib import Path

import pytest

from adapt.show.blocks import NONE, Block, Figures, Folded, Table, TextBlock
from adapt.show.report.searches import parallel_coordinates, search_blocks, search_verdicts
from adapt.show.report.study import Study
from adapt.show.report.study_results import loss_curves, score_curves, searches_of, turn_curves
from adapt.statistics import hyperparameter_importance
from tests.show.report.fake_searches import fake_confirmed, fake_search
from tests.show.report.fake_studies import finished, page_of

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the number of resamples to save time. Other tests check how exact the importance of fields is."""
    monkeypatch.setattr(hyperparameter_importance, "RESAMPLES", 4)


def study(root: Path, trials: int = 12, objectives: int = 1, judged: bool = False) -> Study:
    return Study("one", "base", [fake_search(root, trials, objectives, judged)])


def tables(blocks: list[Block]) -> list[Table]:
    inside = [inner for block in blocks if isinstance(block, Folded) for inner in block.blocks]
    return [block for block in [*blocks, *inside] if isinstance(block, Table)]


def test_all_trials_are_listed_the_best_first(tmp_path: Path) -> None:
    (found,) = searches_of(study(tmp_path, 16))
    best, *_ = found.trials
    assert best.number == found.record.metrics["best"]
    assert {trial.number for trial in found.trials} == {*range(17)} - {4}
    first, more, failed = tables(search_blocks([found]))
    assert len(first.rows) + len(more.rows) == 16
    assert failed.rows[0][:2] == ["4", "failed: the workers failed: rank 0: OutOfMemoryError"]
    as_it_is = next(row for row in [*first.rows, *more.rows] if "unchanged" in getattr(row[0], "text", ""))
    assert as_it_is[2:] == ["0.0001", "0.15", "paper"]


def test_curves_are_those_of_the_trials_own_stages(tmp_path: Path) -> None:
    (found,) = searches_of(study(tmp_path))
    losses, scores = loss_curves(found), score_curves(found)
    assert losses.keys() == scores.keys() == {trial.number for trial in found.trials}
    assert losses[1][0] == (0.0, 8.0)
    assert [epoch for epoch, _ in scores[1]] == [1, 2, 3, 4, 5]
    assert turn_curves(found) == {}


def test_trials_that_were_judged_are_drawn_to_where_they_came(tmp_path: Path) -> None:
    (found,) = searches_of(study(tmp_path, judged=True))
    curves = turn_curves(found)
    assert {number: len(curve) for number, curve in curves.items()} == {n: 1 + (n % 3 == 0) for n in range(13)}
    assert {trial.number % 3 for trial in found.trials} == {0}
    stopped = tables(search_blocks([found]))[-1]
    assert stopped.rows[0][:2] == ["1", "stopped after 30 steps"]


def test_two_objectives_have_a_front(tmp_path: Path) -> None:
    (found,) = searches_of(study(tmp_path, objectives=2))
    drawn = [drawing for block in search_blocks([found]) if isinstance(block, Figures) for drawing in block.drawings]
    # parallel coordinates, importance of fields, curves for both objectives, and the Pareto front
    assert len(drawn) == 5
    assert "filled points on the line" in drawn[-1][1]
    (table, *_) = tables(search_blocks([found]))
    marks = {getattr(row[0], "text", "").split(",")[0] for row in table.rows if getattr(row[0], "mark", "")}
    assert marks
    assert marks <= {str(trial.number) for trial in found.front}


def test_too_few_trials_say_nothing_of_fields(tmp_path: Path) -> None:
    blocks = search_blocks(searches_of(study(tmp_path, 3)))
    assert any(isinstance(block, TextBlock) and "too few different trials" in block.text for block in blocks)


@pytest.mark.parametrize(
    ("difference", "tone"),
    [((0.02, 0.01, 0.03), "better"), ((0.01, -0.01, 0.03), "open"), ((-0.02, -0.03, -0.01), "worse")],
)
def test_what_was_gained_is_what_fresh_seeds_say(
    difference: tuple[float, float, float], tone: str, tmp_path: Path
) -> None:
    entry = fake_search(tmp_path)
    entries = [entry, fake_confirmed(tmp_path, entry.record, difference)]
    (finding,) = search_verdicts(searches_of(Study("one", "base", entries)))
    assert finding.tone == tone
    assert f"dev_score by {difference[0]:+.4f} ({difference[1]:+.4f} to {difference[2]:+.4f})" in finding.text
    shown = tables(search_blocks(searches_of(Study("one", "base", entries))))
    fresh = next(table for table in shown if table.header[0] == "figure")
    assert [row[0] for row in fresh.rows] == ["dev_score", "test_score"]
    assert fresh.rows[0][3].text == f"{difference[0]:.4f}"  # type: ignore[union-attr]
    few = [entry, fake_confirmed(tmp_path, entry.record, difference, seeds=5)]
    (finding,) = search_verdicts(searches_of(Study("one", "base", few)))
    assert finding.tone == "open"
    assert "Five seeds or fewer cannot show a significant difference." in finding.text
    (without,) = search_verdicts(searches_of(Study("one", "base", [entry])))
    assert without.tone == "plain"
    assert "only fresh seeds can show" in without.text


def test_where_no_trial_was_better_the_verdict_says_so(tmp_path: Path) -> None:
    entry = fake_search(tmp_path)
    entry.record.metrics["best"] = 0
    (finding,) = search_verdicts(searches_of(Study("one", "base", [entry])))
    assert finding.text == "Of 17 trials, none was better on dev than your configuration."
    entry.record.metrics.update({**BOUNDED, "beyond": [1, 2]})
    (finding,) = search_verdicts(searches_of(Study("one", "base", [entry])))
    assert finding.text == (
        "Of the 14 of 17 trials that keep losses.general.after within 3.5, none was better on dev than your"
        " configuration."
    )


BOUNDED = {"bound": {"metric": "losses.general.after", "limit": 3.5}}


def test_the_verdict_says_if_the_best_trial_breaks_the_bound(tmp_path: Path) -> None:
    entry = fake_search(tmp_path)
    best = entry.record.metrics["best"]
    entry.record.metrics.update({**BOUNDED, "beyond": [0, best]})
    said = f"Of 17 trials, none keeps losses.general.after within 3.5; trial {best} is nearest, with dev_score"
    (finding,) = search_verdicts(searches_of(Study("one", "base", [entry])))
    assert finding.text.startswith(said)
    confirmed = fake_confirmed(tmp_path, entry.record, (0.02, 0.01, 0.03))
    fresh = {**confirmed.record.metrics["fresh"], "losses.general.after": {"best": {"value": 3.61}}}
    confirmed.record.metrics.update({**BOUNDED, "meets_bound": False, "fresh": fresh})
    for figure in fresh.values():
        figure.setdefault("difference", {"value": 0.1, "low": None, "high": None})
    (finding,) = search_verdicts(searches_of(Study("one", "base", [entry, confirmed])))
    assert "It does not keep losses.general.after within 3.5: 3.61." in finding.text
    assert finding.tone == "worse"


def test_one_sentence_describes_many_searches_without_fresh_seeds(tmp_path: Path) -> None:
    entry = fake_search(tmp_path / "changed")
    confirmed = fake_confirmed(tmp_path / "changed", entry.record, (0.02, 0.01, 0.03))
    (changed,), (with_fresh_seeds,) = (searches_of(Study("one", "base", of)) for of in ([entry], [entry, confirmed]))
    entry = fake_search(tmp_path / "kept")
    entry.record.metrics["best"] = 0
    (kept,) = searches_of(Study("one", "base", [entry]))
    assert len(search_verdicts([changed, changed, kept])) == 3
    known, others = search_verdicts([changed, kept, changed, with_fresh_seeds, changed])
    assert known.tone == "better"
    assert others.text.startswith("In 3 of 4 searches, the best trial on dev differs from your configuration.")


def test_the_page_has_the_section(tmp_path: Path) -> None:
    page = page_of(study(tmp_path / "runs", 16, 2), tmp_path / "report").read_text()
    for words in ("Searches for good values", "search · acl_arc: trials of tapt", "Importance:", "1 search"):
        assert words in page
    assert "#0304" not in page  # All placeholder colours have been replaced.


def test_a_field_that_the_configuration_leaves_open_is_still_a_number(tmp_path: Path) -> None:
    entry = fake_search(tmp_path)
    entry.record.metrics["as_it_is"]["training.learning_rate"] = None  # if the value is None, the job chooses it
    (found,) = searches_of(Study("one", "base", [entry]))
    drawing, _ = parallel_coordinates(found, "0")
    assert ">None<" not in drawing
    assert not any(isinstance(block, TextBlock) and "too few" in block.text for block in search_blocks([found]))


def test_a_best_trial_that_nothing_is_compared_with_is_said_to_be(tmp_path: Path) -> None:
    entry = fake_search(tmp_path)
    confirmed = fake_confirmed(tmp_path, entry.record, (0.0, 0.0, 0.0))
    alone = {
        name: {**of, "as_it_is": None, "difference": None} for name, of in confirmed.record.metrics["fresh"].items()
    }
    metrics = {**confirmed.record.metrics, "fresh": alone, "gained": None, "apparent": None, "selection": None}
    known = replace(confirmed, finished=finished(replace(confirmed.record, metrics=metrics)))
    (found,) = searches_of(Study("one", "base", [entry, known]))
    (finding,) = search_verdicts([found])
    assert "Your configuration failed, so there is nothing to compare the 6 fresh seeds with." in finding.text
    fresh = next(table for table in tables(search_blocks([found])) if table.header[0] == "figure")
    assert [cell.text for cell in fresh.rows[0][2:]] == [NONE, NONE]  # type: ignore[union-attr]
