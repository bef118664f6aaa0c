"""Tests the figure of the methods on the Pareto front of two losses: on the domains and on general text."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from adapt.show.report.pareto_front import front_of
from adapt.show.report.sequence_runs import Sequences, sequences_of
from adapt.show.report.sequence_section import front_verdict, reached, sequence_front
from adapt.show.report.study import Study
from tests.show.report.fake_sequences import entry, sequence
from tests.show.report.fake_studies import Fake

POINTS = {"NCL": (2.0, 0.5), "replay": (2.1, 0.1), "EWC": (2.2, 0.3), "frozen": (2.9, 0.0), "DAS": (2.05, 0.45)}


def study(root: Path, points: Mapping[str, tuple[float, float]], offsets: Sequence[float] = (-0.01, 0.01)) -> Study:
    """Makes methods with the given mean losses over seeds, and separate models whose losses are the lowest."""
    fake = Fake(root)
    entries = []
    for method, (loss, general) in {**points, "ONE": (1.9, -0.1)}.items():
        for seed, offset in enumerate(offsets):
            mode = "separate" if method == "ONE" else "continual"
            told = {**sequence(("cs", "news"), mode, seed), "tables": []}
            rows = [{"cs": 3.0, "news": 3.0, "general": 1.0}, {"cs": loss, "general": 1.0}]
            rows.append({"cs": loss + offset, "news": loss + offset, "general": 1.0 + general + offset})
            if mode == "separate":
                rows[1], rows[2] = {"cs": loss, "general": 1.0 + general}, {"news": loss, "general": 1.0 + general}
            told["losses"] = {"columns": {"cs": 0, "news": 1, "general": None}, "rows": rows}
            entries.append(entry(fake, {"method": method, "seed": str(seed)}, told))
    return Study("in turn", "NCL", entries)


@pytest.fixture
def sequences(tmp_path: Path) -> Sequences:
    return sequences_of(study(tmp_path, POINTS))


def test_losses_are_means_over_seeds(sequences: Sequences) -> None:
    found = {each.method: each for each in reached(sequences)}
    assert {name: found[name].point for name in POINTS} == {name: pytest.approx(at) for name, at in POINTS.items()}
    assert [each.method for each in found.values() if not each.is_one_model] == ["ONE"]
    (low, high), _ = found["NCL"].intervals
    assert (low + high) / 2 == pytest.approx(2.0)
    # With two seeds, Student's t has one degree of freedom, so its 97.5% quantile is 12.706. The standard error is .01.
    assert high - low == pytest.approx(2 * 12.706 * 0.01, rel=1e-3)


def test_the_front_is_of_methods_that_learn_in_turn(sequences: Sequences) -> None:
    front, bend = front_of([each for each in reached(sequences) if each.is_one_model])
    assert [each.method for each in front] == ["NCL", "DAS", "replay", "frozen"]
    assert bend
    assert bend.method == "replay"


def test_the_verdict_names_the_front_and_its_knee(sequences: Sequences) -> None:
    (finding,) = front_verdict(sequences)
    assert finding.text == (
        "4 of 5 methods are Pareto-optimal (no other method is better on both losses): NCL; DAS; replay; frozen. The "
        "best compromise (the knee) is replay: loss on the domains 2.100, on general text +0.100 nats per token."
    )


def test_the_verdict_on_a_front_of_one_method_is_a_sentence(tmp_path: Path) -> None:
    one_best = sequences_of(study(tmp_path, {"NCL": (2.0, 0.5), "DAS": (1.9, 0.4), "replay": (1.8, 0.3)}))
    (finding,) = front_verdict(one_best)
    assert finding.text.startswith("Of 3 methods, replay has the lowest mean loss on the domains and on general text.")


def test_two_methods_have_no_front_and_no_drawing(tmp_path: Path) -> None:
    few = sequences_of(study(tmp_path, {"NCL": (2.0, 0.5)}))
    assert front_verdict(few) == []
    assert sequence_front(few) is None


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    found = reached(sequences_of(study(tmp_path, POINTS, offsets=[0.0])))
    assert found[0].intervals == ((2.0, 2.0), (pytest.approx(0.5), pytest.approx(0.5)))


def test_the_drawing_names_every_method_once(sequences: Sequences) -> None:
    drawn = sequence_front(sequences)
    assert drawn
    ((picture, _),) = drawn.drawings
    names = re.findall(r">([\w-]+)</text>", picture)
    assert sorted(name for name in names if name in {*POINTS, "ONE"}) == sorted([*POINTS, "ONE"])


def test_what_is_far_away_is_said_and_not_drawn(tmp_path: Path) -> None:
    drawn = sequence_front(sequences_of(study(tmp_path, {**POINTS, "prompt": (40.0, 9.0)})))
    assert drawn
    ((picture, about),) = drawn.drawings
    assert ">prompt</text>" not in picture
    axes = "(loss on the domains, change on general text)"
    assert about.endswith(f"Too far away to be drawn {axes}: prompt (40.00, +9.00).")
