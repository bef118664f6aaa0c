"""Entities are those that conlleval finds."""

import itertools
import random

import pytest

from adapt.finetune.entities import EntityCounts
from adapt.statistics.spans import spans

LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


def by_definition(labels: list[str]) -> set[tuple[str, int, int]]:
    """All stretches that begin as an entity, go on as one, and end as one."""

    def begins(place: int) -> bool:
        before = labels[place - 1] if place else "O"
        return labels[place][0] == "B" or (
            labels[place][0] == "I" and (before == "O" or before[2:] != labels[place][2:])
        )

    found = set()
    for start, stop in itertools.combinations(range(len(labels) + 1), 2):
        inside = labels[start:stop]
        same = all(label == f"I-{inside[0][2:]}" for label in inside[1:])
        ends = stop == len(labels) or labels[stop] == "O" or begins(stop)
        if inside[0] != "O" and begins(start) and same and ends:
            found.add((inside[0][2:], start, stop))
    return found


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-X I-X O", {("X", 0, 2)}),
        ("O I-X I-X", {("X", 1, 3)}),
        ("B-X B-X", {("X", 0, 1), ("X", 1, 2)}),
        ("B-X I-Y I-Y", {("X", 0, 1), ("Y", 1, 3)}),
        ("I-X B-X I-X", {("X", 0, 1), ("X", 1, 3)}),
        ("B-X-1 I-X-1 I-X", {("X-1", 0, 2), ("X", 2, 3)}),
    ],
)
def test_known_cases(labels: str, expected: set[tuple[str, int, int]]) -> None:
    assert spans(labels.split()) == expected


def test_all_short_texts() -> None:
    for length in range(5):
        for labels in itertools.product(LABELS, repeat=length):
            assert spans(labels) == by_definition(list(labels)), labels


def test_counts() -> None:
    draw = random.Random(0)
    pairs = [tuple([draw.choice(LABELS) for _ in range(6)] for _ in range(2)) for _ in range(50)]
    found = EntityCounts.of(pairs)  # type: ignore[arg-type]
    true = {(number, *each) for number, (labels, _) in enumerate(pairs) for each in by_definition(labels)}
    guess = {(number, *each) for number, (_, labels) in enumerate(pairs) for each in by_definition(labels)}
    for kind, scores in [("", found.total), *found.by_type.items()]:
        t, g = ({each for each in those if not kind or each[1] == kind} for those in (true, guess))
        precision, recall = len(t & g) / len(g), len(t & g) / len(t)
        assert scores == pytest.approx(
            {
                "precision": precision,
                "recall": recall,
                "f1": 2 * precision * recall / (precision + recall),
                "support": len(t),
            }
        )
    assert list(found.by_type) == ["X", "Y"]


def test_nothing_to_find() -> None:
    assert EntityCounts.of([(["O"], ["O"])]).total == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    assert EntityCounts.of([(["O"], ["B-X"])]).by_type == {"X": {"precision": 0, "recall": 0, "f1": 0, "support": 0}}
