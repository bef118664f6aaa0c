"""Where texts lie: distances against all pairs, words that decide, and one map for all sets."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_distances

from adapt.select.judge.layout import MAPPED, SAMPLE, map_places, mean_distance, word_vectors
from tests.samples import sentences

FIRST = [f"gradient of layer {text}" for text in sentences(40, 1)]
SECOND = [f"protein binds kinase {text}" for text in sentences(40, 2)]
SETS = {"first": FIRST, "second": SECOND}


def test_the_mean_distance_is_that_of_all_pairs() -> None:
    vectors = word_vectors(SETS, 0)["first"]
    pairs = np.triu_indices(len(vectors), 1)
    assert mean_distance(vectors) == pytest.approx(cosine_distances(vectors)[pairs].mean())
    assert mean_distance(np.repeat(vectors[:1], 5, axis=0)) == pytest.approx(0)
    assert mean_distance(np.eye(3)) == pytest.approx(1)
    assert mean_distance(vectors[:1]) is None


def test_texts_of_several_kinds_lie_farther_apart_than_those_of_one() -> None:
    found = word_vectors({**SETS, "both": [*FIRST[:20], *SECOND[:20]]}, 0)
    first, second, both = (mean_distance(rows) for rows in found.values())
    assert first
    assert second
    assert both
    assert both > 1.05 * max(first, second)


def test_vectors_are_of_so_many_texts_have_length_one_and_are_the_same_again() -> None:
    many = {"many": FIRST * (SAMPLE // len(FIRST) + 1), "few": SECOND}
    found, again = word_vectors(many, 3), word_vectors(many, 3)
    assert {name: len(rows) for name, rows in found.items()} == {"many": SAMPLE, "few": len(SECOND)}
    for name, rows in found.items():
        assert np.linalg.norm(rows, axis=1) == pytest.approx(1)
        assert (rows == again[name]).all()


def test_too_little_text_has_no_vectors_and_no_map() -> None:
    assert word_vectors({"one": ["a word"], "other": ["something else"]}, 0) == {}
    assert word_vectors({"one": FIRST[:3], "other": []}, 0) == {}
    assert map_places({}, 0) == {}


def test_texts_without_a_shared_word_get_no_vector() -> None:
    assert len(word_vectors({"first": [*FIRST, "zyx wvu"], "second": SECOND}, 0)["first"]) == len(FIRST)


def test_texts_that_are_alike_lie_together_on_the_map() -> None:
    vectors = word_vectors(SETS, 0)
    places = map_places(vectors, 0)
    first, second = places["first"], places["second"]
    assert {name: rows.shape for name, rows in places.items()} == dict.fromkeys(SETS, (40, 2))
    centres = first.mean(0), second.mean(0)
    nearer = [np.linalg.norm(first - centre, axis=1) for centre in centres]
    assert (nearer[0] < nearer[1]).mean() > 0.9
    assert len(map_places({"first": np.repeat(vectors["first"], 10, axis=0)}, 0)["first"]) == MAPPED
