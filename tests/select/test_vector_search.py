"""Tests the nearest documents of each target text against a comparison of all pairs."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from adapt.config import Config
from adapt.index.exact_search import unit_rows
from adapt.select.selection import NEVER, Given, Room
from adapt.select.table import selection_of
from adapt.support.errors import DataError
from tests.index.clusters import clustered
from tests.select.pools import embedded, given, numbered

FIRST, APART = 2**24 - 20, 3
POOL, TARGET = clustered(120, 8), clustered(6, 8, seed=4)
IDS = FIRST + APART * np.arange(len(POOL), dtype=np.int64)


@pytest.fixture
def situation(tmp_path: Path) -> Given:
    """Returns inputs of a selection.

    Some ids of the pool are above 2^24, where float32 cannot represent all integers.
    """
    return given(numbered(["text"] * len(POOL), FIRST, APART), vectors=embedded(tmp_path, POOL, IDS, TARGET))


def similarities(target: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Returns the cosine similarity of each target text with each document of the pool."""
    return unit_rows(target.astype(np.float16)).astype(np.float64) @ unit_rows(pool).astype(np.float64).T


def ranks_of(similar: np.ndarray) -> np.ndarray:
    """Returns the rank of each document for each target text, from 0.

    Among equally similar documents, the first has the lowest rank.
    """
    return np.argsort(np.argsort(-similar, axis=1, kind="stable"), axis=1)


def scored(situation: Given, documents: int | None = None, per_text: int | None = None, **more: Any) -> Any:
    """Runs the kNN search. Returns the selection, the result of `look_for`, and the score of each pool document."""
    selection = selection_of("knn", {}, 0)
    selection.learn(situation)
    room = Room(documents=documents if per_text is None else per_text * len(TARGET), **more)
    offer = selection.look_for(room, per_text)
    return selection, offer, np.array(list(selection.scores(situation.pool, situation.target)))


def test_the_index_is_not_sent_to_scoring_processes(situation: Given) -> None:
    selection, _, scores = scored(situation, per_text=3)
    other = pickle.loads(pickle.dumps(selection))
    assert list(other.scores(situation.pool, situation.target)) == scores.tolist()
    assert "faiss" not in repr(vars(other._near))


@pytest.mark.parametrize("k", [1, 3, 40, 120])
def test_the_k_nearest_of_every_text_are_taken_with_their_highest_similarity(situation: Given, k: int) -> None:
    selection, offer, scores = scored(situation, per_text=k)
    similar = similarities(TARGET, POOL)
    near = ranks_of(similar) < k
    expected = np.where(near, similar, -np.inf).max(0)
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    assert offer == "enough"  # target texts share neighbours, so there are fewer documents than the budget
    assert selection.figures() == {
        "neighbours": k,
        "union": near.any(0).sum(),
        "recall": 1.0,
        "texts_without_vector": 0,
    }


@pytest.mark.parametrize("documents", [1, 6, 7, 50, 119, 120, 500])
def test_a_budget_takes_the_nearest_of_every_text_first(situation: Given, documents: int) -> None:
    _, offer, scores = scored(situation, documents)
    similar = similarities(TARGET, POOL)
    best = ranks_of(similar).min(0)
    nearness = np.where(ranks_of(similar) == best, similar, -np.inf).max(0)
    expected = np.lexsort((-nearness, best))[: min(documents, 120)]
    taken = np.argsort(-scores, kind="stable")[: min(documents, 120)]
    assert (scores[taken] > NEVER).all()
    assert (best[taken] == best[expected]).all()
    assert offer == ("all" if documents >= 120 else "more") or (scores > NEVER).all()


def test_more_room_does_not_change_earlier_choices(situation: Given) -> None:
    """The best nine documents are the same, whether 9 or 60 documents are requested.

    The first search returns more neighbours if more documents are requested, which must not affect the result.
    """
    few, many = (np.argsort(-scored(situation, documents)[2], kind="stable")[:9] for documents in (9, 60))
    assert few.tolist() == many.tolist()


def test_a_budget_in_characters_assumes_short_documents(situation: Given) -> None:
    _, _, scores = scored(situation, characters=200 * 30)
    assert (scores > NEVER).sum() >= 30


@settings(max_examples=20)
@drawn(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 5))
def test_a_narrowed_pool_is_searched_as_if_there_were_no_other_documents(
    tmp_path_factory: pytest.TempPathFactory, seed: int, size: int, k: int
) -> None:
    draw, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("pool")
    left = np.sort(draw.choice(120, size, replace=False))
    narrow = numbered(["text"] * 120, FIRST, APART).narrowed(IDS[left])
    small = given(narrow, vectors=embedded(folder, POOL, IDS, TARGET), permitted=IDS[left])
    scores = scored(small, per_text=min(k, size))[2]
    similar = similarities(TARGET, POOL[left])
    expected = np.where(ranks_of(similar) < min(k, size), similar, -np.inf).max(0)
    np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_an_approximate_index_reaches_the_required_recall(tmp_path: Path) -> None:
    pool, target = clustered(2000, 8), clustered(40, 8, seed=4)
    ids = np.arange(2000, dtype=np.int64)
    config = replace(Config(), select=replace(Config().select, min_recall=0.9))
    vectors = embedded(tmp_path, pool, ids, target, "ivf")
    selection, _, scores = scored(given(numbered(["text"] * 2000), vectors=vectors, config=config), per_text=5)
    similar = similarities(target, pool)
    near = (ranks_of(similar) < 5).any(0)
    assert 0.9 <= selection.figures()["recall"] <= 1
    assert (scores[near] > NEVER).mean() > 0.85


def test_texts_without_known_words_have_no_neighbours(tmp_path: Path) -> None:
    target = np.concatenate([TARGET, np.zeros((2, 8), np.float32)])
    pool = numbered(["text"] * len(POOL), FIRST, APART)
    known, unknown = (
        scored(given(pool, vectors=embedded(tmp_path / name, POOL, IDS, each)), per_text=2)
        for name, each in (("known", TARGET), ("both", target))
    )
    np.testing.assert_array_equal(known[2], unknown[2])
    assert unknown[0].figures()["texts_without_vector"] == 2
    with pytest.raises(DataError, match="knows no word of the 2 texts of the target"):
        scored(given(pool, vectors=embedded(tmp_path / "none", POOL, IDS, target[6:])), per_text=2)


def test_results_are_pickled_without_the_index(situation: Given) -> None:
    selection, _, scores = scored(situation, 20)
    sent = pickle.loads(pickle.dumps(selection))
    np.testing.assert_array_equal(list(sent.scores(situation.pool, [])), scores)
    with pytest.raises(AttributeError):
        sent.look_for(Room(documents=20), None)


def test_impossible_searches_are_refused(situation: Given, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="121 neighbours of each text are needed, but the pool has only 120") as caught:
        scored(situation, per_text=121)
    assert "select.per_example" in caught.value.fix
    assert situation.vectors
    other = replace(situation, vectors=replace(situation.vectors, space="another"))
    with pytest.raises(DataError, match="holds vectors of the embedder toy, but the queries are"):
        scored(other, per_text=1)
    wide = given(situation.pool, vectors=embedded(tmp_path / "wide", POOL, IDS, clustered(6, 9)))
    with pytest.raises(DataError, match=r"shape \[6, 9\] instead of \[n, 8\]"):
        scored(wide, per_text=1)
    with pytest.raises(DataError, match="no document is left"):
        scored(replace(situation, permitted=np.zeros(0, np.int64)), per_text=1)
