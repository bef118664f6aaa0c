"""Measures nearest-neighbour search among a million clustered vectors of 384 dimensions, and memory with ten million.

`flat_equal`: whether, for some queries, exact search finds the same vectors as float64 products, with ties broken by
id. `recall_at_50`: recall of inverted lists at the smallest width (number of searched lists) that finds .95 of the
nearest 50 vectors. `speedup_over_flat`: speed at this width, divided by the speed of exact search for the same queries,
without loading. `select_s`: time to find the 500 nearest vectors of 4,169 queries, as kNN-TAPT does for ChemProt.
`resident_gib_10m`: peak memory of a process that searches ten million vectors, including mapped files.
`shards_identical`: whether 1, 2 and 4 shards find the same ids at the same distances. `--quick` uses a fiftieth of the
vectors; exact search is then so fast that the speedup is not meaningful. The full form needs 12 GB of temporary disk.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adapt.index.exact_search import merge_nearest, unit_rows, write_part
from adapt.index.index_files import IndexFacts, index_parts
from adapt.index.vector_index import VectorIndex, recall_of, width_for
from benchmarks.common import Options, Result, apart, main
from benchmarks.rounds import Ratio, alternate

TARGETS = {
    "flat_equal": (">=", 1.0),
    "recall_at_50": (">=", 0.95),
    "speedup_over_flat": (">=", 10.0),
    "select_s": ("<=", 60.0),
    "resident_gib_10m": ("<=", 8.0),
    "shards_identical": (">=", 1.0),
}
DIMENSION = 384
BATCH = 5_000
FIRST_ID = 2**24
CLUSTER_VECTORS = 500
"""Mean number of vectors per cluster."""
SPREAD = 0.8
"""Distance of a vector from the centre of its cluster. The centre has length 1."""
QUERIES = 4169


class Found(NamedTuple):
    """Results that one process measures with an exact and an approximate index of the same vectors."""

    flat_equal: bool
    recall: float
    width: int
    speedup: Ratio
    select_s: float
    identical: bool


def measure(options: Options) -> Result:
    """Measures a million vectors, then ten million. Each index is built first, and then searched in a new process."""
    million = 20_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        flat_s, lists_s = apart(built, folder, million)
        found = apart(searched, folder, million)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        build_s, build_gib = apart(built_large, Path(name), 10 * million)
        search_s, resident_gib, recall = apart(searched_large, Path(name), 10 * million)
    details = [
        ("vectors", f"{million:,} x {DIMENSION}; {10 * million:,}"),
        ("written, lists built", f"{flat_s:.0f} s, {lists_s:.0f} s"),
        ("lists searched for recall_at_50", f"{found.width} of {2 * int(million**0.5)}"),
        ("ten times as many: built", f"{build_s:.0f} s, {build_gib:.2f} GiB resident"),
        ("ten times as many: 50 nearest of 1,000", f"{search_s:.1f} s, recall {recall:.3f} with the same width"),
    ]
    figures = {
        "flat_equal": float(found.flat_equal),
        "recall_at_50": found.recall,
        "select_s": found.select_s,
        "resident_gib_10m": max(build_gib, resident_gib),
        "shards_identical": float(found.identical),
    }
    result = Result(figures, details)
    result.compare("speedup_over_flat", found.speedup)
    return result


def vectors_of(count: int, first: int = 0, last: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of ids and vectors from `first` up to `last`, which are multiples of BATCH."""
    for start in range(first, last or count, BATCH):
        draw = np.random.default_rng((1, start))
        yield np.arange(FIRST_ID + start, FIRST_ID + start + BATCH), _around(draw, count, BATCH)


def write_parts(folder: Path, count: int, part: int) -> list[int]:
    """Writes all vectors in parts, and returns the number of vectors in each part."""
    folder.mkdir(exist_ok=True)
    for number, first in enumerate(range(0, count, part)):
        write_part(vectors_of(count, first, first + part), folder, number, DIMENSION, part)
    return [part] * (count // part)


def queries_for(count: int, size: int) -> np.ndarray:
    return _around(np.random.default_rng(2), count, size)


def _around(draw: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Draws random vectors around random centres."""
    centres = _centres(max(10, count // CLUSTER_VECTORS))
    found = draw.standard_normal((size, DIMENSION), np.float32)
    found *= np.float32(SPREAD * DIMENSION**-0.5)
    found += centres[draw.integers(len(centres), size=size)]
    return found


@cache
def _centres(clusters: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((clusters, DIMENSION), np.float32) * np.float32(DIMENSION**-0.5)


def built(folder: Path, count: int) -> tuple[float, float]:
    """Writes the vectors in four parts and builds inverted lists. Returns both times [s]."""
    _two_threads()
    began = time.monotonic()
    sizes = write_parts(folder / "flat", count, count // 4)
    index_parts(folder / "flat", sizes, "made", DIMENSION, kind="flat")
    between = time.monotonic()
    (folder / "ivf").mkdir()
    for file in (folder / "flat").glob("*.npy"):
        (folder / "ivf" / file.name).symlink_to(file)
    index_parts(folder / "ivf", sizes, "made", DIMENSION, kind="ivf")
    return between - began, time.monotonic() - between


def searched(folder: Path, count: int) -> Found:
    """Measures the exact and the approximate index of a million vectors."""
    _two_threads()
    flat, lists = VectorIndex.open(folder / "flat"), VectorIndex.open(folder / "ivf")
    queries = queries_for(count, QUERIES)
    some = queries[:1000]
    width = width_for(lists, some, 50, 0.95).width or 0
    compared = alternate({"flat": lambda: _timed(flat, some, None), "lists": lambda: _timed(lists, some, width)})
    truth, found = compared.found["flat"][0][1], compared.found["lists"][0][1]
    began = time.monotonic()
    lists.search(queries, min(500, count // 10), width)
    return Found(
        _is_brute_force(count, queries[:20], flat),
        recall_of(found, truth),
        width,
        compared.ratio("flat", "lists", lambda timed: timed[0]),
        time.monotonic() - began,
        _are_identical(flat, some[:100], None) and _are_identical(lists, some, width),
    )


def _timed(index: VectorIndex, queries: np.ndarray, width: int | None) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    index.search(queries[:50], 50, width)  # reads the files before the time is measured
    began = time.monotonic()
    found = index.search(queries, 50, width)
    return time.monotonic() - began, found


def _is_brute_force(count: int, queries: np.ndarray, index: VectorIndex) -> bool:
    """Returns whether the index finds the same vectors as float64 products, computed batch by batch."""
    asked = unit_rows(queries).astype(np.float64)
    distances, numbers = [], []
    for ids, vectors in vectors_of(count):
        every = 1 - asked @ unit_rows(vectors).astype(np.float64).T
        order = np.argsort(every, axis=1, kind="stable")[:, :50]
        distances.append(np.take_along_axis(every, order, 1))
        numbers.append(ids[order])
    truth = merge_nearest(list(zip(distances, numbers, strict=True)), 50)
    return all(np.array_equal(*pair) for pair in zip(index.search(queries, 50), truth, strict=True))


def _are_identical(index: VectorIndex, queries: np.ndarray, width: int | None) -> bool:
    """Returns whether 2 and 4 shards, searched in reverse order, find the same vectors as one shard."""
    whole, parts = index.search(queries, 50, width), range(len(index.facts.parts))
    for shards in (2, 4):
        some = [VectorIndex.open(index.folder, None, parts[shard::shards]) for shard in reversed(range(shards))]
        merged = merge_nearest([shard.search(queries, 50, width) for shard in some], 50)
        if not all(np.array_equal(*pair) for pair in zip(whole, merged, strict=True)):
            return False
    return True


def built_large(folder: Path, count: int) -> tuple[float, float]:
    """Builds the index that is chosen for 8 GiB of memory. Returns the time [s] and the peak memory."""
    _two_threads()
    began = time.monotonic()
    with Resident() as resident:
        kind = "auto" if count > 2**20 else "ivf"
        sizes = write_parts(folder, count, min(count, 1_000_000))
        facts: IndexFacts = index_parts(folder, sizes, "made", DIMENSION, kind=kind)
    assert facts.kind == "ivf"
    return time.monotonic() - began, resident.gib


def searched_large(folder: Path, count: int) -> tuple[float, float, float]:
    """Searches a thousand queries. Returns the time [s], the peak memory, and the recall of the nearest 50."""
    _two_threads()
    queries = queries_for(count, 1000)
    with Resident() as resident:
        index = VectorIndex.open(folder)
        began = time.monotonic()
        index.search(queries, 50, 16)
        seconds = time.monotonic() - began
        sample = queries[::20]
        recall = recall_of(index.search(sample, 50, 16), index.search_exactly(sample, 50))
    return seconds, resident.gib, recall


def _two_threads() -> None:
    import faiss

    faiss.omp_set_num_threads(2)


class Resident:
    """Measures the peak memory of this process while a block runs, including mapped files."""

    def __enter__(self) -> "Resident":
        self.gib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        process = psutil.Process()
        while not self._ended.wait(0.05):
            self.gib = max(self.gib, process.memory_info().rss / 2**30)


if __name__ == "__main__":
    main("knn", TARGETS, measure)
