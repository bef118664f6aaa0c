"""Chooses the kind of index by size and memory, and finds candidates with faiss: inverted lists (IVF), graphs (HNSW).

| vectors | what fits into memory | queries | kind | bytes of memory per vector of d dimensions | what a search does |
|---|---|---|---|---|---|
| up to 2^20 | | | flat | 0 | compares all vectors; exact |
| more | hnsw | as many as vectors, or more | hnsw | 2 d + 280 | walks a graph of neighbours |
| more | ivf | fewer, or hnsw does not fit | ivf | d + 8 | compares the nearest lists, in 8 bits per dimension |
| more | neither | any | ivf_pq | d / 8 + 8 | compares the nearest lists, in 1 bit per dimension |

Adding a vector to a graph takes some hundred comparisons, and a query some thousand. Inverted lists compare each query
with a share of all vectors, so a graph pays off if there are as many queries as vectors. Every kind leaves the vectors
themselves (2 d bytes each) on disk, and reads those of the candidates from there. All parts share the centres of the
lists, so the result of a search does not depend on how vectors are distributed over parts.
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from adapt.index.exact_search import VectorPart, faiss_library
from adapt.runner.files import file_aside
from adapt.support.errors import ConfigError, DataError, nearest

IndexKind = Literal["flat", "ivf", "ivf_pq", "hnsw"]
FLAT_VECTORS = 2**20
"""Largest number of vectors for which each query is compared with all of them."""
LINKS = 32
"""Number of neighbours of a vector in the graph of kind hnsw. In the lowest layer, a vector has twice as many."""
LEAST: dict[IndexKind, int] = {"ivf": 100, "ivf_pq": 1000}
"""Smallest number of vectors from which the centres of the inverted lists can be learnt, keyed by kind."""


@dataclass(frozen=True)
class IndexPlan:
    """The kind of an index and its number of inverted lists."""

    kind: IndexKind
    lists: int = 0
    """Number of inverted lists: twice the square root of the number of vectors. Each list contains the vectors nearest
    to its centre. 0 for the kinds without lists."""


def plan_index(
    vectors: int, dimension: int, memory_bytes: int, queries: int = 0, kind: IndexKind | Literal["auto"] = "auto"
) -> IndexPlan:
    """Plans an index. `auto` chooses the kind by the table at the top of this module.

    Args:
      vectors: number of vectors.
      dimension: dimension of the vectors.
      memory_bytes: memory for the index, on a machine that holds the whole index.
      queries: expected number of queries.
      kind: kind of index, or `auto`.

    Raises:
      ConfigError: there is no such kind.
      DataError: there are too few vectors for this kind.
    """
    if kind == "auto":
        kind = _suited(vectors, dimension, memory_bytes, queries)
    if kind not in get_args(IndexKind):
        raise ConfigError(f"there is no index of kind {kind!r}", nearest(kind, ["auto", *get_args(IndexKind)]))
    if vectors < LEAST.get(kind, 0):
        raise DataError(
            f"an index of kind {kind} needs at least {LEAST[kind]} vectors, and there are {vectors}", "choose flat"
        )
    return IndexPlan(kind, 2 * isqrt(vectors) if kind.startswith("ivf") else 0)


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
    """Returns the bytes of a product quantizer's code of a vector: one per eight dimensions."""
    return -(-dimension // 8)


TRAINED_FILE = "centres.faiss"
TRAINED_ON = 64
"""Size of the sample from which the centres of the lists are learnt [vectors per list]."""
MORE = {"ivf": 1.25, "ivf_pq": 8.0, "hnsw": 1.0}
"""Number of candidates per requested neighbour, keyed by kind. Kinds that store fewer bits per vector rank less
accurately, so they need more candidates."""
FIRST_WIDTH = {"ivf": 8, "ivf_pq": 8, "hnsw": 64}
"""Default width of a search, keyed by kind. The width is the number of inverted lists that are searched, or the number
of candidates that a walk through the graph keeps."""
_BLOCK = 2**15


def candidates_file(number: int) -> str:
    """Returns the name of the file with the faiss index that finds candidates in a part."""
    return f"candidates-{number:05d}.faiss"


def widest(plan: IndexPlan) -> int:
    """Returns the largest useful width of a search: all lists, or 2^14 candidates in a graph."""
    return plan.lists or 2**14


def train_candidates(plan: IndexPlan, sample: np.ndarray, folder: Path) -> None:
    """Learns centres and codes from a sample of unit vectors [s, d]. Writes them as a faiss index without vectors."""
    index = _untrained(plan, sample.shape[1])
    index.train(padded(sample.astype(np.float32), index.d))
    _write(index, folder / TRAINED_FILE)


def add_candidates(part: VectorPart, folder: Path) -> None:
    """Writes the faiss index of a part. Searches of this index return positions in the part instead of ids."""
    faiss = faiss_library()
    index = faiss.read_index(str(folder / TRAINED_FILE))
    for start in range(0, len(part.rows), _BLOCK):
        index.add(padded(part.rows[start : start + _BLOCK].astype(np.float32), index.d))
    _write(index, folder / candidates_file(part.number))


@dataclass(frozen=True)
class Proposer:
    """The opened faiss index of one part, which proposes candidates."""

    plan: IndexPlan
    index: Any
    """The faiss index."""
    gpu: Any = None
    """The faiss object that manages memory of the GPU that holds the index. None if the index is in main memory."""

    @classmethod
    def open(cls, plan: IndexPlan, folder: Path, number: int, is_narrowed: bool = False) -> "Proposer":
        """Opens the faiss index of a part. Kind ivf is loaded to a GPU if faiss can use one; else the file is mapped.

        Args:
          plan: plan of the index.
          folder: folder of the index.
          number: number of the part.
          is_narrowed: whether searches are limited to some of the vectors. faiss supports this limit only on the CPU.
        """
        faiss = faiss_library()
        file = str(folder / candidates_file(number))
        if faiss.get_num_gpus() and plan.kind == "ivf" and not is_narrowed:
            resources = faiss.StandardGpuResources()
            return cls(plan, faiss.index_cpu_to_gpu(resources, 0, faiss.read_index(file)), resources)
        flags = faiss.IO_FLAG_MMAP_IFC if plan.kind == "hnsw" else faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY
        return cls(plan, faiss.read_index(file, flags))

    def candidates(self, queries: np.ndarray, count: int, width: int, among: np.ndarray | None = None) -> np.ndarray:
        """Returns the positions of each query's candidates in the part, int64 [q, m]. -1 marks a missing candidate.

        Args:
          queries: vectors of length 1, float16 [q, d].
          count: number of neighbours per query.
          width: width of the search (see FIRST_WIDTH).
          among: positions of the vectors to search, in rising order. None searches all vectors.
        """
        faiss = faiss_library()
        wide = padded(queries.astype(np.float32), self.index.d)
        depth = min(int(MORE[self.plan.kind] * count) + 16, self.index.ntotal if among is None else len(among))
        if not depth:
            return np.zeros((len(queries), 0), np.int64)
        some = {} if among is None else {"sel": faiss.IDSelectorBatch(among)}
        if self.gpu is not None:
            self.index.nprobe = width
            result = self.index.search(wide, min(depth, 2048))
        elif self.plan.kind == "hnsw":
            result = self.index.search(
                wide, depth, params=faiss.SearchParametersHNSW(efSearch=max(width, depth), **some)
            )
        else:
            result = self.index.search(wide, depth, params=faiss.SearchParametersIVF(nprobe=width, **some))
        positions: np.ndarray = result[1]
        return positions


def padded(rows: np.ndarray, dimension: int) -> np.ndarray:
    """Appends zeros to vectors until they have `dimension` numbers. This changes no dot product."""
    missing = dimension - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _untrained(plan: IndexPlan, dimension: int) -> Any:
    faiss = faiss_library()
    product = faiss.METRIC_INNER_PRODUCT
    if plan.kind == "hnsw":
        return faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, LINKS, product)
    if plan.kind == "ivf":
        centres = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFScalarQuantizer(centres, dimension, plan.lists, faiss.ScalarQuantizer.QT_8bit, product)
    else:
        dimension = 8 * code_bytes(dimension)
        centres = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFPQ(centres, dimension, plan.lists, code_bytes(dimension), 8, product)
        index.pq.cp.min_points_per_centroid = 1
    index.own_fields = True
    centres.this.disown()  # only `index` frees the centres; otherwise both Python objects would
    index.cp.min_points_per_centroid = 1  # otherwise faiss warns on stderr
    index.cp.max_points_per_centroid = TRAINED_ON
    index.cp.spherical = True
    return index


def training_positions(vectors: int, plan: IndexPlan) -> np.ndarray:
    """Returns the positions, in rising order and evenly spread, of the vectors from which centres are learnt."""
    size = min(vectors, max(TRAINED_ON * plan.lists, 20_000))
    return np.arange(size, dtype=np.int64) * vectors // max(size, 1)


def _write(index: Any, file: Path) -> None:
    faiss = faiss_library()
    with file_aside(file) as aside:
        faiss.write_index(index, str(aside))
