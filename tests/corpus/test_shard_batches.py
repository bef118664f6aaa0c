"""Tests that batches follow the order of the mixture from any first step, for any number of ranks and with Ray Data."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest

from adapt.corpus import shard_batches as module
from adapt.corpus.sample_order import Mixture, permute
from adapt.corpus.shard_batches import Feed, streamed
from adapt.corpus.token_shards import TokenStream, write_shard
from adapt.support.schema import SHARD_GLOB

LENGTH, BATCH, SEED = 8, 12, 5
_draw = np.random.default_rng(0)
DOCUMENTS = np.split(np.arange(1, 484), np.sort(_draw.choice(np.arange(1, 483), 99, replace=False)))
FIRSTS = {int(tokens[0]) for tokens in DOCUMENTS}
Batches = list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes 100 documents in 4 shards, and returns their folder.

    The documents have 483 tokens: 61 rows of 8 tokens, where the last row has only 3. With 12 rows per batch, an epoch
    is 5 batches and one row.
    """
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        documents = DOCUMENTS[25 * number : 25 * number + 25]
        even = [tokens % 2 == 0 for tokens in documents]
        write_shard(folder / f"train-{number:06d}-000000.arrow", documents, 1000, {"even": even})
    return str(folder)


def feed(corpus: str, first: int = 0, last: int = 5, rank: int = 0, world: int = 1) -> Feed:
    return Feed((corpus,), Mixture.of([61], SEED), LENGTH, BATCH, first, last, rank, world, ("even",))


def brute_force(first: int, last: int, rank: int, world: int) -> Iterator[tuple[list[list[int]], list[int], list[int]]]:
    """Yields tokens, epochs and row numbers of a rank's batches, taken from a list of all rows of three epochs."""
    rows = [[*range(start, min(start + LENGTH, 484))] for start in range(1, 484, LENGTH)]
    order = [(epoch, row) for epoch in range(3) for row in permute(np.arange(61), 61, SEED, epoch).tolist()]
    for step in range(first, last):
        share = order[step * BATCH : (step + 1) * BATCH][rank * BATCH // world : (rank + 1) * BATCH // world]
        tokens = [rows[row] + [0] * (LENGTH - len(rows[row])) for _, row in share]
        yield tokens, [epoch for epoch, _ in share], [row for _, row in share]


def check(batches: Batches, first: int, last: int, rank: int, world: int) -> None:
    expected = list(brute_force(first, last, rank, world))
    assert len(batches) == last - first
    for batch, (tokens, epochs, rows) in zip(batches, expected, strict=True):
        assert batch["tokens"].tolist() == tokens
        assert batch["epochs"].tolist() == epochs
        assert batch["rows"].tolist() == rows
        assert batch["starts"].tolist() == [[t in FIRSTS or (i == 0) for i, t in enumerate(row)] for row in tokens]
        assert batch["even"].tolist() == [[t > 0 and t % 2 == 0 for t in row] for row in tokens]
        assert batch["lengths"].tolist() == [3 if row == 60 else LENGTH for row in rows]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 12), (7, 9), (4, 15)])
def test_batches_read_in_one_process(corpus: str, first: int, last: int, world: int) -> None:
    for rank in range(world):
        check(list(feed(corpus, first, last, rank, world).read()), first, last, rank, world)


def test_an_epoch_contains_every_token_once(corpus: str) -> None:
    """In 61 steps, each token occurs 12 times, because 61 batches of 12 rows are 12 epochs of 61 rows."""
    batches = list(feed(corpus, 0, 61).read())
    tokens = np.concatenate([batch["tokens"].ravel() for batch in batches])
    assert np.bincount(tokens)[1:].tolist() == [12] * 483
    assert TokenStream.open(Path(corpus), SHARD_GLOB).tokens == 483


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("first", "last", "rank", "world"), [(0, 11, 0, 1), (4, 15, 1, 2), (7, 8, 2, 3), (3, 9, 3, 4)])
@pytest.mark.parametrize("part_bytes", [1, 1000, 10**6])
def test_batches_streamed_by_ray_data(
    corpus: str,
    first: int,
    last: int,
    rank: int,
    world: int,
    part_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches read by Ray Data equal the expected batches, for several first steps and part sizes."""
    monkeypatch.setattr(module, "STEPS_AT_ONCE", 2)
    monkeypatch.setattr(module, "PART_BYTES", part_bytes)
    with streamed(feed(corpus, first, last, rank, world)) as batches:
        check(list(batches), first, last, rank, world)


@pytest.mark.usefixtures("ray_cluster")
def test_batches_of_a_long_run_are_in_order(corpus: str) -> None:
    plain = list(feed(corpus, 13, 400).read())
    with streamed(feed(corpus, 13, 400)) as batches:
        for batch, expected in zip(batches, plain, strict=True):
            assert batch.keys() == expected.keys()
            for name in expected:
                assert batch[name].dtype == expected[name].dtype
                assert np.array_equal(batch[name], expected[name])


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (0, 9), (4, 30)])
def test_steps_read_at_once_are_the_steps_in_order(others: tuple[str, ...], first: int, stop: int) -> None:
    """Reading several steps at once gives the same rows as reading them one by one, over several epochs and sources."""
    mixture = Mixture.of([3, 40, 7], 5)
    several = Feed(others, mixture, LENGTH, BATCH, first, stop, rank=1, world=2)
    alone = [several.step(step) for step in range(first, stop)]
    for name, values in several.steps(first, stop).items():
        assert np.array_equal(values, np.concatenate([batch[name] for batch in alone]))


@dataclass(frozen=True)
class Counted(Feed):
    """Logs each read to a file, as the number of the step after the last step read."""

    log: str = ""

    def steps(self, first: int, stop: int) -> dict[str, np.ndarray]:
        with open(self.log, "a") as log:
            log.write(f"{stop}\n")
        return super().steps(first, stop)


@pytest.mark.usefixtures("ray_cluster")
def test_reading_waits_for_training(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a part of a long run is read before training takes more batches, and training never waits forever."""
    monkeypatch.setattr(module, "PART_BYTES", 100_000)
    log, steps = tmp_path / "steps", 20_000
    plain = feed(corpus, 0, steps)
    given = {declared.name: getattr(plain, declared.name) for declared in fields(plain)}

    def read() -> int:
        return int(log.read_text().split()[-1])

    with streamed(Counted(**given, log=str(log))) as batches:
        next(batches)
        before = -1
        while before != read():
            before = read()
            time.sleep(1)
        assert read() < steps / 4
        for _ in range(steps // 2):
            next(batches)
        assert steps / 2 < read() < steps


def test_an_empty_range_of_steps_needs_no_ray(corpus: str) -> None:
    """A run that is resumed after its last step has no batches, and reads nothing through Ray."""
    for first in (5, 6):
        with streamed(feed(corpus, first, 5)) as batches:
            assert list(batches) == []


@pytest.mark.usefixtures("ray_cluster")
def test_a_vocabulary_with_larger_ids_is_read_unchanged(corpus: str, tmp_path: Path) -> None:
    write_shard(tmp_path / "train-000000-000000.arrow", [list(range(99_000, 99_100))], 100_000)
    with streamed(
        replace(feed(corpus, 0, 1), folders=(str(tmp_path),), mixture=Mixture.of([13], 0), marks=())
    ) as batches:
        tokens = next(batches)["tokens"]
    assert tokens.dtype == np.uint32
    assert set(tokens.ravel().tolist()) <= {0, *range(99_000, 99_100)}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Writes three sources of 3, 40 and 7 rows, and returns their folders.

    The tokens of source s are 1000 s, 1000 s + 1 and so on, so a token shows its source and position.
    """
    folders = []
    for source, tokens in enumerate((24, 317, 50)):
        folder = tmp_path_factory.mktemp(f"source-{source}")
        write_shard(folder / "train-000000-000000.arrow", [list(range(1000 * source, 1000 * source + tokens))], 5000)
        folders.append(str(folder))
    return tuple(folders)


def test_batches_of_several_sources_follow_the_mixture(others: tuple[str, ...]) -> None:
    """For any number of ranks, the tokens of a batch come from the sources and rows that the mixture returns."""
    mixture = Mixture.of([3, 40, 7], SEED, weights=[1, 2, 1])
    for world in (1, 2, 3):
        for step in (0, 1, 17):
            parts = [Feed(others, mixture, LENGTH, BATCH, 0, 20, rank, world).step(step) for rank in range(world)]
            batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            places = mixture.locate(np.arange(step * BATCH, (step + 1) * BATCH))
            assert (batch["tokens"][:, 0] == places.sources * 1000 + places.rows * LENGTH).all()
            assert (batch["rows"] == np.array([0, 3, 43])[places.sources] + places.rows).all()
            assert (batch["epochs"] == places.epochs).all()
            assert {len(batch[name]) for name in batch} == {BATCH}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_run_resumed_on_other_numbers_of_ranks_gets_the_same_batches(others: tuple[str, ...], world: int) -> None:
    """A run that is resumed several times, each time with a different number of ranks, equals an uninterrupted run."""
    mixture = Mixture.of([3, 40, 7], SEED)
    whole = list(Feed(others, mixture, LENGTH, BATCH, 0, 25, 0, 1).read())
    draw, lived, first = np.random.default_rng(world), [], 0
    while first < 25:
        last = min(25, first + int(draw.integers(1, 9)))
        ranks = [list(Feed(others, mixture, LENGTH, BATCH, first, last, r, world).read()) for r in range(world)]
        lived += [np.concatenate([share["rows"] for share in step]) for step in zip(*ranks, strict=True)]
        first, world = last, world % 3 + 1
    assert [rows.tolist() for rows in lived] == [batch["rows"].tolist() for batch in whole]
    assert sorted(np.concatenate(lived).tolist()) == sorted([*range(50)] * 6)


def test_a_corpus_of_one_row_fills_a_batch(others: tuple[str, ...]) -> None:
    batch = Feed(others[:1], Mixture.of([3], SEED), 8, BATCH, 0, 1, 0, 1).step(0)
    assert np.bincount(batch["rows"]).tolist() == [4, 4, 4]
    assert batch["epochs"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
