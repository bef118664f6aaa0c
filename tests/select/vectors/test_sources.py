"""Sources that an embedder tells apart are told apart by kNN and TSDS, also where all vectors have much in common."""

import numpy as np
import pytest

from adapt.embed.indexed import build_on_cluster
from adapt.embed.written import chunk_file, write_vectors
from adapt.select.base import Given, Room, Vectors
from adapt.select.highest import highest
from adapt.select.table import selection_of
from tests.select.pools import given, numbered

EACH, TAKEN, DIMENSION = 120, 40, 96
WORDS = {0: 140, 1: 25, 2: 210}
"""Words of the documents of each source: the fewer, the more a mean over them is chance."""


def vectors_of(source: int, count: int, words: int, rng: np.random.Generator) -> np.ndarray:
    """What all texts have in common, what the source has, and the chance of a mean over few words."""
    found = np.zeros((count, DIMENSION))
    found[:, 0] = 10.0
    found[:, 1 + source] = 1.0
    return (found + 1.0 * words**-0.5 * rng.normal(size=found.shape)).astype(np.float16)


@pytest.fixture(scope="module", params=list(WORDS))
def chosen_from(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None
) -> tuple[int, Given]:
    """The source of the target, whose texts are sentences, and what selections are given."""
    folder, rng = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    pool = np.concatenate([vectors_of(source, EACH, words, rng) for source, words in WORDS.items()])
    target = vectors_of(request.param, 60, 25, rng)
    for name, vectors in (("pool", pool), ("target", target)):
        (folder / name).mkdir()
        write_vectors(folder / name / chunk_file(0, 0), np.arange(len(vectors)), vectors, {})
    (folder / "index").mkdir()
    build_on_cluster(folder / "pool", folder / "index", "toy", DIMENSION, memory_bytes=2**30, queries=0, kind="flat")
    vectors = Vectors(folder / "index", folder / "target", "toy")
    return request.param, given(numbered(f"text {number}" for number in range(len(pool))), ["x"] * 60, vectors=vectors)


@pytest.mark.parametrize("kind", ["knn", "tsds"])
def test_what_is_selected_is_of_the_targets_source(kind: str, chosen_from: tuple[int, Given]) -> None:
    source, what = chosen_from
    selection = selection_of(kind, {}, 0)
    selection.learn(what)
    selection.look_for(Room(documents=TAKEN), None)
    taken = [id for id, _, _ in highest(selection, what.pool, what.target, TAKEN)]
    assert sum(id // EACH == source for id in taken) >= 0.8 * TAKEN
