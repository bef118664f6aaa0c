"""Tests that selections do not prefer a source of the pool for its form, such as the length of its texts."""

from collections.abc import Callable

import numpy as np
import pytest

from adapt.embed.vector_files import build_on_cluster, chunk_file, write_vectors
from adapt.select.choose import highest
from adapt.select.selection import Given, Room, Vectors
from adapt.select.table import selection_of
from tests.select.pools import given, numbered, ranked

COMMON = [f"common{number}" for number in range(60)]
TAKEN, EACH = 60, 180
SUBJECT, STYLE = 0.2, 0.2
"""Shares of words in a text that belong to its source and to its style.

The remaining words are common to all sources.
"""
LENGTHS = {"systems": (60, 140), "cells": (8, 14), "films": (120, 260)}
"""Range of the number of words per document, keyed by source. Only `cells` has texts as short as sentences."""


def text_of(source: str, words: int, rng: np.random.Generator) -> str:
    """Returns a text with words of its source. The two science sources share words that `films` lacks."""
    subject = [f"{source}{number}" for number in range(40)]
    style = [f"{'fun' if source == 'films' else 'science'}{number}" for number in range(40)]
    kinds = np.digitize(rng.random(words), [SUBJECT, SUBJECT + STYLE])
    lists = (subject, style, COMMON)
    return " ".join(
        lists[kind][int(place * len(lists[kind]))] for kind, place in zip(kinds, rng.random(words), strict=True)
    )


def texts_of(source: str, count: int, seed: int, lengths: tuple[int, int]) -> list[str]:
    rng = np.random.default_rng(seed)
    return [text_of(source, int(rng.integers(*lengths)), rng) for _ in range(count)]


def bracketed(text: str) -> str:
    words = text.split()
    return " ".join([words[0], "E1START", words[1], "E1END", *words[2:5], "E2START", *words[5:6], "E2END", *words[6:]])


@pytest.mark.parametrize("kind", ["dsir", "classifier"])
@pytest.mark.parametrize("source", list(LENGTHS))
@pytest.mark.parametrize("lengths", [(6, 9), (20, 30), (150, 250)], ids=["short", "sentences", "long"])
@pytest.mark.parametrize("marked", [str, bracketed], ids=["plain", "marked"])
def test_selected_documents_are_of_the_targets_source(
    kind: str, source: str, lengths: tuple[int, int], marked: Callable[[str], str]
) -> None:
    pool = [(name, text) for name in LENGTHS for text in texts_of(name, EACH, 1, LENGTHS[name])]
    target = [marked(text) for text in texts_of(source, 120, 2, lengths)]
    best = ranked(selection_of(kind, {}, 0), numbered([text for _, text in pool]), target)[:TAKEN]
    assert sum(pool[id][0] == source for id, _ in best) >= 0.8 * TAKEN


VECTORS_EACH, VECTORS_TAKEN, DIMENSION = 120, 40, 96
WORDS = {0: 140, 1: 25, 2: 210}
"""Number of words per document, keyed by source. A mean over fewer words is noisier."""


def vectors_of(source: int, count: int, words: int, rng: np.random.Generator) -> np.ndarray:
    """Returns vectors that consist of a common part, a part of the source, and noise.

    The noise falls with the number of words.
    """
    found = np.zeros((count, DIMENSION))
    found[:, 0] = 10.0
    found[:, 1 + source] = 1.0
    return (found + 1.0 * words**-0.5 * rng.normal(size=found.shape)).astype(np.float16)


@pytest.fixture(scope="module", params=list(WORDS))
def chosen_from(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None
) -> tuple[int, Given]:
    """Returns the source of the target and the inputs of a selection. The target's texts are as long as sentences."""
    folder, rng = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    pool = np.concatenate([vectors_of(source, VECTORS_EACH, words, rng) for source, words in WORDS.items()])
    target = vectors_of(request.param, 60, 25, rng)
    for name, vectors in (("pool", pool), ("target", target)):
        (folder / name).mkdir()
        write_vectors(folder / name / chunk_file(0, 0), np.arange(len(vectors)), vectors, {})
    (folder / "index").mkdir()
    build_on_cluster(folder / "pool", folder / "index", "toy", DIMENSION, memory_bytes=2**30, queries=0, kind="flat")
    vectors = Vectors(folder / "index", folder / "target", "toy")
    return request.param, given(numbered(f"text {number}" for number in range(len(pool))), ["x"] * 60, vectors=vectors)


@pytest.mark.parametrize("kind", ["knn", "tsds"])
def test_documents_selected_by_vectors_are_of_the_targets_source(kind: str, chosen_from: tuple[int, Given]) -> None:
    source, what = chosen_from
    selection = selection_of(kind, {}, 0)
    selection.learn(what)
    selection.look_for(Room(documents=VECTORS_TAKEN), None)
    taken = [id for id, _, _ in highest(selection, what.pool, what.target, VECTORS_TAKEN)]
    assert sum(id // VECTORS_EACH == source for id in taken) >= 0.8 * VECTORS_TAKEN
