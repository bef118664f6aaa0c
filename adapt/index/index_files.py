"""Builds the files of an index and finds candidates in them, with faiss's inverted lists (IVF) and graphs (HNSW).

`index.json` describes the index. Each part of the vectors has a file for finding candidates. The number of vectors, the
memory and the number of queries determine the kind of index:

| vectors | what fits into memory | queries | kind | bytes of memory per vector of d dimensions | what a search does |
|---|---|---|---|---|---|
| up to 2^20 | | | flat | 0 | compares all vectors; exact |
| more | hnsw | as many as vectors, or more | hnsw | 2 d + 280 | walks a graph of neighbours |
| more | ivf | fewer, or hnsw does not fit | ivf | d + 8 | compares the nearest lists, in 8 bits per dimension |
| more | neither | any | ivf_pq | d / 8 + 8 | compares the nearest lists, in 1 bit per dimension |

Adding a vector to a graph takes a few hundred comparisons; a query takes about 1,000. With inverted lists, each query
is compared with a share of all vectors, so a graph pays off if there are as many queries as vectors. Every kind leaves
the vectors themselves (2 d bytes each) on disk, and reads only the vectors of the candidates. All parts share the
centres of the lists, so the result of a search does not depend on how vectors are distributed over parts.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import accumulate
from math import isqrt
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from adapt.index.exact_search import MOST_ON_GPU, VectorPart, faiss_library
from adapt.runner.files import file_aside, write_atomically
from adapt.support.errors import ConfigError, DataError, nearest

IndexKind = Literal["flat", "ivf", "ivf_pq", "hnsw"]
KINDS: tuple[IndexKind, ...] = get_args(IndexKind)
FLAT_VECTORS = 2**20
"""Maximum number of vectors for which each query is compared with all vectors."""
LINKS = 32
"""Number of neighbours of a vector in the graph of kind hnsw. In the lowest layer, a vector has twice as many
neighbours."""
LEAST: dict[IndexKind, int] = {"ivf": 100, "ivf_pq": 1000}
"""Minimum number of vectors that is needed to learn the centres of the inverted lists, keyed by kind."""


@dataclass(frozen=True)
class IndexFacts:
    """The description of an index in `index.json`. The file is written last, so an index without it is unfinished."""

    embedder: str
    """Text that identifies the embedder of the vectors. Only vectors of the same embedder can be compared."""
    dimension: int
    parts: tuple[int, ...]
    """Number of vectors in each part."""
    kind: IndexKind
    lists: int = 0
    """Number of inverted lists: twice the square root of the number of vectors. Each list contains the vectors nearest
    to its centre. 0 for the kinds without lists."""

    @property
    def vectors(self) -> int:
        """Number of vectors in all parts."""
        return sum(self.parts)

    def save(self, folder: Path) -> None:
        """Writes the description to `index.json` in a folder."""
        write_atomically(folder / INDEX_FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "IndexFacts":
        """Reads the description that `save` wrote.

        Raises:
            DataError: there is no finished index.
        """
        try:
            known = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
            return cls(**{**{name.name: known[name.name] for name in fields(cls)}, "parts": tuple(known["parts"])})
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} holds no finished index: {error}", "build the index again") from error


def chosen_kind(vectors: int, dimension: int, memory_bytes: int, queries: int = 0, kind: str = "auto") -> IndexKind:
    """Returns the kind of an index. `auto` chooses the kind by the table at the top of this module.

    `memory_bytes` is the memory for the index on a machine that holds the whole index.

    Raises:
      ConfigError: there is no such kind.
      DataError: there are too few vectors for this kind.
    """
    if kind == "auto":
        return _suited(vectors, dimension, memory_bytes, queries)
    known = next((known for known in KINDS if known == kind), None)
    if known is None:
        raise ConfigError(f"there is no index of kind {kind!r}", nearest(kind, ["auto", *KINDS]))
    if vectors < LEAST.get(known, 0):
        raise DataError(
            f"an index of kind {known} needs at least {LEAST[known]} vectors, and there are {vectors}",
            "choose the kind flat",
        )
    return known


def _suited(vectors: int, dimension: int, memory_bytes: int, queries: int) -> IndexKind:
    if vectors <= FLAT_VECTORS:
        return "flat"
    if queries >= vectors and vectors * bytes_a_vector("hnsw", dimension) <= memory_bytes:
        return "hnsw"
    return "ivf" if vectors * bytes_a_vector("ivf", dimension) <= memory_bytes else "ivf_pq"


def bytes_a_vector(kind: IndexKind, dimension: int) -> int:
    """Returns the bytes of memory that an index needs per vector while it is searched."""
    codes = {"flat": 0, "ivf": dimension + 8, "ivf_pq": code_bytes(dimension) + 8}
    return 2 * dimension + 35 * LINKS // 4 if kind == "hnsw" else codes[kind]


def code_bytes(dimension: int) -> int:
    """Returns the size of a vector's code in a product quantizer [bytes]: one byte per eight dimensions."""
    return -(-dimension // 8)


TRAINED_FILE = "centres.faiss"
TRAINED_ON = 64
"""Size of the sample from which the centres of the lists are learned [vectors per list]."""
MORE = {"ivf": 1.25, "ivf_pq": 8.0, "hnsw": 1.0}
"""Number of candidates per requested neighbour, keyed by kind. Kinds that store fewer bits per vector rank less
accurately, so they need more candidates."""
FIRST_WIDTH = {"ivf": 8, "ivf_pq": 8, "hnsw": 64}
"""Default width of a search, keyed by kind. The width is the number of inverted lists that are searched, or the number
of candidates that are stored during a walk through the graph."""
_BLOCK = 2**15


def candidates_file(number: int) -> str:
    """Returns the name of the file with the faiss index that finds candidates in a part."""
    return f"candidates-{number:05d}.faiss"


def widest(facts: IndexFacts) -> int:
    """Returns the maximum useful width of a search: all lists, or 2^14 candidates in a graph."""
    return facts.lists or 2**14


def train_candidates(facts: IndexFacts, sample: np.ndarray, folder: Path) -> None:
    """Learns the list centres and the quantizer's codes from a sample of unit vectors [s, d].

    Writes a faiss index without vectors.
    """
    index = _untrained(facts, sample.shape[1])
    index.train(padded(sample.astype(np.float32), index.d))
    _write(index, folder / TRAINED_FILE)


def add_candidates(folder: Path, number: int) -> None:
    """Writes the faiss index of a part. Searches of this index return positions in the part instead of ids."""
    faiss, part = faiss_library(), VectorPart.open(folder, number)
    index = faiss.read_index(str(folder / TRAINED_FILE))
    for start in range(0, len(part.rows), _BLOCK):
        index.add(padded(part.rows[start : start + _BLOCK].astype(np.float32), index.d))
    _write(index, folder / candidates_file(number))


@dataclass(frozen=True)
class Proposer:
    """The opened faiss index of one part, which proposes candidates."""

    facts: IndexFacts
    index: Any
    """The faiss index, memory-mapped."""
    on_gpu: Any = None
    """A copy of the index on a GPU. None if there is no such copy."""
    resources: Any = None
    """The faiss object that manages the memory of the GPU."""

    @classmethod
    def open(cls, facts: IndexFacts, folder: Path, number: int, is_narrowed: bool = False) -> "Proposer":
        """Maps the file of the faiss index of a part. Kind ivf is also loaded to a GPU if faiss can use a GPU.

        faiss can limit searches to some of the vectors (`is_narrowed`) only on the CPU.
        """
        faiss = faiss_library()
        file = str(folder / candidates_file(number))
        flags = faiss.IO_FLAG_MMAP_IFC if facts.kind == "hnsw" else faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY
        index = faiss.read_index(file, flags)
        if faiss.get_num_gpus() and facts.kind == "ivf" and not is_narrowed:
            resources = faiss.StandardGpuResources()
            return cls(facts, index, faiss.index_cpu_to_gpu(resources, 0, faiss.read_index(file)), resources)
        return cls(facts, index)

    def candidates(self, queries: np.ndarray, count: int, width: int, among: np.ndarray | None = None) -> np.ndarray:
        """Returns the positions of each query's candidates in the part, int64 [q, m]. -1 marks a missing candidate.

        Queries have length 1, float16 [q, d]. `width` is described at FIRST_WIDTH. `among` has the positions of
        the vectors to search, in ascending order; None searches all.
        """
        faiss = faiss_library()
        wide = padded(queries.astype(np.float32), self.index.d)
        depth = min(int(MORE[self.facts.kind] * count) + 16, self.index.ntotal if among is None else len(among))
        if not depth:
            return np.zeros((len(queries), 0), np.int64)
        some = {} if among is None else {"sel": faiss.IDSelectorBatch(among)}
        if self.on_gpu is not None and max(depth, width) <= MOST_ON_GPU:
            self.on_gpu.nprobe = width
            result = self.on_gpu.search(wide, depth)
        elif self.facts.kind == "hnsw":
            result = self.index.search(
                wide, depth, params=faiss.SearchParametersHNSW(efSearch=max(width, depth), **some)
            )
        else:
            result = self.index.search(wide, depth, params=faiss.SearchParametersIVF(nprobe=width, **some))
        positions: np.ndarray = result[1]
        return positions


def padded(rows: np.ndarray, dimension: int) -> np.ndarray:
    """Appends zeros to vectors until they have `dimension` values. Dot products do not change."""
    missing = dimension - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _untrained(facts: IndexFacts, dimension: int) -> Any:
    faiss = faiss_library()
    product = faiss.METRIC_INNER_PRODUCT
    if facts.kind == "hnsw":
        return faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, product)
    if facts.kind == "ivf":
        centres = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFScalarQuantizer(centres, dimension, facts.lists, faiss.ScalarQuantizer.QT_8bit, product)
    else:
        dimension = 8 * code_bytes(dimension)
        centres = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFPQ(centres, dimension, facts.lists, code_bytes(dimension), 8, product)
        index.pq.cp.min_points_per_centroid = 1
    index.own_fields = True
    centres.this.disown()  # without this call, both Python objects would free the centres
    index.cp.min_points_per_centroid = 1  # without this setting, faiss prints warnings about small samples
    index.cp.max_points_per_centroid = TRAINED_ON
    index.cp.spherical = True
    return index


def training_positions(facts: IndexFacts) -> np.ndarray:
    """Returns the positions, in ascending order, of the evenly spread vectors that are used to learn the centres."""
    vectors = facts.vectors
    size = min(vectors, max(TRAINED_ON * facts.lists, 20_000))
    return np.arange(size, dtype=np.int64) * vectors // max(size, 1)


def _write(index: Any, file: Path) -> None:
    faiss = faiss_library()
    with file_aside(file) as aside:
        faiss.write_index(index, str(aside))


INDEX_FILE = "index.json"
CENTRE_FILE = "centre.npy"
"""Name of the file with the mean of all vectors, computed after each vector was scaled to length 1. This mean was
subtracted from the vectors before they were indexed."""
MEMORY_BYTES = 8 * 2**30
"""Default for the memory that an index may use, if one machine holds the whole index [bytes]."""
T = TypeVar("T")
Spread = Callable[[Callable[[int], T], Sequence[int]], list[T]]
"""Type of a function that calls another function with each number of a list, and returns the results in the order of
the list. The calls run in this process or in tasks of the cluster."""


def one_after_another(function: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    """Calls a function with each number, one after another, in this process."""
    return [function(number) for number in numbers]


def index_parts(
    folder: Path,
    sizes: Sequence[int],
    embedder: str,
    dimension: int,
    memory_bytes: int = MEMORY_BYTES,
    queries: int = 0,
    kind: str = "auto",
    spread: "Spread[None]" = one_after_another,
) -> IndexFacts:
    """Builds an index of the parts that `adapt.index.exact_search.write_part` wrote to a folder.

    `sizes` are the numbers of vectors of the parts. `spread` calls the indexing function for each part, in this
    process or in tasks of the cluster.

    Raises:
      DataError: there are no vectors or too few for `kind`.
      ConfigError: there is no such kind.
    """
    if not sum(sizes):
        raise DataError("there are no vectors to index", "check the texts that were embedded")
    chosen = chosen_kind(sum(sizes), dimension, memory_bytes, queries, kind)
    lists = 2 * isqrt(sum(sizes)) if chosen.startswith("ivf") else 0
    facts = IndexFacts(embedder, dimension, tuple(sizes), chosen, lists)
    if chosen != "flat":
        train_candidates(facts, _rows(folder, sizes, training_positions(facts)), folder)
        spread(partial(add_candidates, folder), range(len(sizes)))
    facts.save(folder)
    return facts


def centre_in(folder: Path) -> np.ndarray | None:
    """Returns the mean to subtract from the queries of the index in `folder`, float64 [d]. None if there is no mean."""
    file = folder / CENTRE_FILE
    return np.load(file, allow_pickle=False) if file.exists() else None


def rows_at(folder: Path, positions: np.ndarray) -> np.ndarray:
    """Returns the vectors of an index at the given positions, scaled to length 1, float16 [n, d].

    The positions are in ascending order, and counted over the vectors of all parts, one part after another.
    """
    return _rows(folder, IndexFacts.load(folder).parts, positions)


def _rows(folder: Path, sizes: Sequence[int], positions: np.ndarray) -> np.ndarray:
    ends = list(accumulate(sizes))
    chosen = []
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        first, last = np.searchsorted(positions, [end - size, end])
        part = VectorPart.open(folder, number)
        chosen.append(part.rows[positions[first:last] - (end - size)])
    return np.concatenate(chosen)
