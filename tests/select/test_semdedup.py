"""Tests the removal of documents with nearly equal vectors against a comparison of all pairs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from adapt.index.exact_search import unit_rows
from adapt.select import semdedup
from adapt.select.choose import highest
from adapt.select.selection import NEVER
from adapt.select.semdedup import centres_of, copies_in, kept_vectors
from adapt.select.table import selection_of
from adapt.support.errors import DataError
from tests.index.clusters import clustered, indexed
from tests.select.pools import embedded, given, numbered

FIRST = 2**24 - 40


def with_copies(count: int, seed: int = 0) -> np.ndarray:
    """Returns vectors in clusters. Each vector in the last third is a near copy of a vector in the first third."""
    draw, vectors = np.random.default_rng(seed), clustered(count, 8, seed=seed)
    third = count // 3
    vectors[-third:] = vectors[:third] * draw.uniform(0.5, 2, (third, 1)) + draw.normal(scale=0.02, size=(third, 8))
    return vectors


def by_hand(vectors: np.ndarray, most: float, labels: np.ndarray | None = None) -> list[int]:
    """Returns the indices of the remaining vectors in order.

    A vector is removed if it is near an earlier remaining vector. With `labels`, both vectors must be in the same
    cluster.
    """
    rows = unit_rows(vectors).astype(np.float64)
    stay: list[int] = []
    for place, row in enumerate(rows):
        others = [each for each in stay if labels is None or labels[each] == labels[place]]
        if not (rows[others] @ row > most).any():
            stay.append(place)
    return stay


def indexed_from_first(folder: Path, vectors: np.ndarray, part: int = 10**6) -> Path:
    indexed(folder, FIRST + np.arange(len(vectors), dtype=np.int64), vectors, part=part)
    return folder


@settings(max_examples=25)
@drawn(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 9), st.sampled_from([0.5, 0.8, 0.99]))
def test_the_first_of_several_copies_is_kept(seed: int, count: int, block: int, most: float) -> None:
    """Vectors consist of small integers, so many vectors are equal. Several block sizes are tested."""
    vectors = np.random.default_rng(seed).integers(-1, 2, (count, 3)).astype(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(semdedup, "ROWS_AT_ONCE", block)
        stays = kept_vectors(unit_rows(vectors), most)
    assert np.flatnonzero(stays).tolist() == by_hand(vectors, most)


def test_a_chain_of_copies_loses_every_other_link() -> None:
    """Each document is only near its neighbours in the chain. The second document is removed, so the third remains."""
    angles = np.deg2rad([0, 20, 40])
    rows = unit_rows(np.stack([np.cos(angles), np.sin(angles)], 1))
    assert kept_vectors(rows, np.cos(np.deg2rad(25))).tolist() == [True, False, True]


def test_copies_are_those_of_all_pairs_in_the_same_cluster(tmp_path: Path) -> None:
    vectors = with_copies(300)
    folder = indexed_from_first(tmp_path, vectors)
    one = copies_in(folder, 1, 0.95) - FIRST
    assert sorted({*range(300)} - {*one.tolist()}) == by_hand(vectors, 0.95)
    assert len(one) >= 95
    rows = unit_rows(vectors)
    centres = centres_of(rows[:: 300 // 300].astype(np.float32), 12, 0)
    labels = (rows.astype(np.float64) @ centres.astype(np.float64).T).argmax(1)
    several = copies_in(folder, 12, 0.95) - FIRST
    assert sorted({*range(300)} - {*several.tolist()}) == by_hand(vectors, 0.95, labels)
    assert len(np.unique(labels)) > 6
    assert len(several) >= 85  # a copy near the border of a cluster may be in another cluster


@pytest.mark.parametrize("part", [300, 77, 13])
def test_parts_and_workers_change_nothing(tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = with_copies(300, seed=2)
    whole = copies_in(indexed_from_first(tmp_path / "whole", vectors), 9, 0.9)
    parted = indexed_from_first(tmp_path / "parts", vectors, part)
    backwards = copies_in(
        parted, 9, 0.9, spread=lambda function, numbers: [function(n) for n in reversed(numbers)][::-1]
    )
    monkeypatch.setattr(semdedup, "TASKS", 4)
    assert copies_in(parted, 9, 0.9).tolist() == backwards.tolist() == whole.tolist()


def test_documents_dropped_by_other_selections_are_ignored(tmp_path: Path) -> None:
    vectors = with_copies(120)
    only = FIRST + np.arange(40, 120)
    found = copies_in(indexed_from_first(tmp_path, vectors), 5, 0.95, only)
    assert np.isin(found, only).all()
    assert len(found) < 40 / 2 < len(copies_in(tmp_path, 5, 0.95))


def test_the_selection_drops_copies_and_takes_others_at_random(tmp_path: Path) -> None:
    vectors = with_copies(120)
    ids = FIRST + np.arange(120, dtype=np.int64)
    pool = numbered(["text"] * 120, FIRST)
    selection = selection_of("semdedup", {"clusters": 1}, 0)
    assert selection.is_filter()
    selection.learn(given(pool, vectors=embedded(tmp_path, vectors, ids, vectors[:1])))
    scores = np.array(list(selection.scores(pool, [])))
    assert np.flatnonzero(scores > NEVER).tolist() == by_hand(vectors, 0.95)
    assert selection.figures() == {"documents": 120, "clusters": 1, "copies": (scores == NEVER).sum()}
    taken = [place for place, _, _ in highest(selection, pool, [], 10)]
    assert max(taken) > 30  # the documents are not just the first documents of the pool
    with pytest.raises(DataError, match="no document is left"):
        selection.learn(
            given(pool, vectors=embedded(tmp_path / "b", vectors, ids, vectors[:1]), permitted=np.zeros(0, np.int64))
        )
