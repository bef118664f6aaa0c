"""Kinds of index: the choice by size and memory, and candidates from inverted lists (IVF) and graphs (HNSW) by faiss.

| vectors | what fits into the memory | queries | kind | memory a vector, d dimensions [bytes] | what it does |
|---|---|---|---|---|---|
| up to 2^20 | | | flat | 0 | compares all; exact |
| more | codes and graph | as many as vectors, or more | hnsw | 2 d + 280 | walks a graph of neighbours |
| more | codes | fewer | ivf | d + 8 | compares those near the same centres, in 8 bits a dimension |
| more | less | any | ivf_pq | d / 8 + 8 | the same, in 1 bit a dimension |

Building a graph takes some hundred comparisons per vector, and walking it some thousand per query, where inverted lists
look at a share of all vectors: a graph pays where every vector is a query too. The vectors themselves (2 d bytes each)
stay on disk, whatever the kind; candidates are read there. The centres of the lists are the same in all parts, so a
search looks at the same vectors whatever part they are in.
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from adapt.index.parts import VectorPart
from adapt.runner.files import file_aside
from adapt.support.errors import ConfigError, DataError, nearest

IndexKind = Literal["flat", "ivf", "ivf_pq", "hnsw"]
FLAT_VECTORS = 2**20
"""Up to so many all are compared."""
LINKS = 32
"""Neighbours of a vector in the graph; twice as many in its lowest layer."""
LEAST: dict[IndexKind, int] = {"ivf": 100, "ivf_pq": 1000}
"""Fewer vectors have no centres worth looking for."""


@dataclass(frozen=True)
class IndexPlan:
    """A kind of index, and its size."""

    kind: IndexKind
    lists: int = 0
    """Inverted lists, each around a centre; twice the square root of the number of vectors."""


def plan_index(
    vectors: int, dimension: int, memory_bytes: int, queries: int = 0, kind: IndexKind | Literal["auto"] = "auto"
) -> IndexPlan:
    """The plan for an index; `auto` chooses by the table above.

    Args:
        vectors: how many there are.
        dimension: of each.
        memory_bytes: what a machine that holds all of the index may use for it.
        queries: how many will be asked.
        kind: to have this one instead.

    Raises:
        ConfigError: there is no such kind.
        DataError: there are too few vectors for it.
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
    """Memory that an index needs for a vector while it is searched."""
    codes = {"flat": 0, "ivf": dimension + 8, "ivf_pq": code_bytes(dimension) + 8}
    return 2 * dimension + 35 * LINKS // 4 if kind == "hnsw" else codes[kind]


def code_bytes(dimension: int) -> int:
    """Bytes of a product quantizer: one for eight dimensions."""
    return -(-dimension // 8)


TRAINED_FILE = "centres.faiss"
TRAINED_ON = 64
"""Vectors for each list that its centre is learnt from."""
MORE = {"ivf": 1.25, "ivf_pq": 8.0, "hnsw": 1.0}
"""Candidates for each neighbour that is wanted: codes of fewer bits rank them less well."""
FIRST_WIDTH = {"ivf": 8, "ivf_pq": 8, "hnsw": 64}
"""Lists that are searched, or candidates that a walk keeps, unless more are needed."""
_BLOCK = 2**15


def library() -> Any:
    """faiss, of whose classes its own types lack much."""
    import faiss

    return faiss


def candidates_file(number: int) -> str:
    """Name of the file of what finds the candidates of a part."""
    return f"candidates-{number:05d}.faiss"


def widest(plan: IndexPlan) -> int:
    """The largest width that still finds more."""
    return plan.lists or 2**14


def train_candidates(plan: IndexPlan, sample: np.ndarray, folder: Path) -> None:
    """Writes an index without vectors: centres and codes, learnt from a sample of unit rows [s, d]."""
    index = _untrained(plan, sample.shape[1])
    index.train(padded(sample.astype(np.float32), index.d))
    _write(index, folder / TRAINED_FILE)


def add_candidates(part: VectorPart, folder: Path) -> None:
    """Writes the index of a part's vectors, by their positions."""
    faiss = library()
    index = faiss.read_index(str(folder / TRAINED_FILE))
    for start in range(0, len(part.rows), _BLOCK):
        index.add(padded(part.rows[start : start + _BLOCK].astype(np.float32), index.d))
    _write(index, folder / candidates_file(part.number))


@dataclass(frozen=True)
class Proposer:
    """Proposes candidates of a part."""

    plan: IndexPlan
    index: Any
    """One of faiss's."""
    gpu: Any = None
    """Memory of the GPU that holds the index, where one does."""

    @classmethod
    def open(cls, plan: IndexPlan, folder: Path, number: int, is_narrowed: bool = False) -> "Proposer":
        """Maps the file; or reads it onto a GPU, where faiss has one and can search such an index there.

        Args:
            plan: what kind it is.
            folder: of the index.
            number: of the part.
            is_narrowed: whether only some of the vectors may be found, which faiss heeds on the CPU alone.
        """
        faiss = library()
        file = str(folder / candidates_file(number))
        if faiss.get_num_gpus() and plan.kind == "ivf" and not is_narrowed:
            resources = faiss.StandardGpuResources()
            return cls(plan, faiss.index_cpu_to_gpu(resources, 0, faiss.read_index(file)), resources)
        flags = faiss.IO_FLAG_MMAP_IFC if plan.kind == "hnsw" else faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY
        return cls(plan, faiss.read_index(file, flags))

    def candidates(self, queries: np.ndarray, count: int, width: int, among: np.ndarray | None = None) -> np.ndarray:
        """Positions in the part, int64 [q, m]; -1 where there are no more.

        Args:
            queries: of length 1, float16 [q, d].
            count: neighbours that are wanted.
            width: how widely to search.
            among: positions of the vectors that may be found, rising; None for all.
        """
        faiss = library()
        asked = padded(queries.astype(np.float32), self.index.d)
        depth = min(int(MORE[self.plan.kind] * count) + 16, self.index.ntotal if among is None else len(among))
        if not depth:
            return np.zeros((len(queries), 0), np.int64)
        some = {} if among is None else {"sel": faiss.IDSelectorBatch(among)}
        if self.gpu is not None:
            self.index.nprobe = width
            found = self.index.search(asked, min(depth, 2048))
        elif self.plan.kind == "hnsw":
            found = self.index.search(
                asked, depth, params=faiss.SearchParametersHNSW(efSearch=max(width, depth), **some)
            )
        else:
            found = self.index.search(asked, depth, params=faiss.SearchParametersIVF(nprobe=width, **some))
        positions: np.ndarray = found[1]
        return positions


def padded(rows: np.ndarray, dimension: int) -> np.ndarray:
    """Rows with zeros up to a dimension, which change no product."""
    missing = dimension - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _untrained(plan: IndexPlan, dimension: int) -> Any:
    faiss = library()
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
    centres.this.disown()  # else both Python objects would free it
    index.cp.min_points_per_centroid = 1  # it warns on stderr else
    index.cp.max_points_per_centroid = TRAINED_ON
    index.cp.spherical = True
    return index


def training_positions(vectors: int, plan: IndexPlan) -> np.ndarray:
    """Which vectors to learn from, evenly from all over, rising."""
    wanted = min(vectors, max(TRAINED_ON * plan.lists, 20_000))
    return np.arange(wanted, dtype=np.int64) * vectors // max(wanted, 1)


def _write(index: Any, file: Path) -> None:
    faiss = library()
    with file_aside(file) as aside:
        faiss.write_index(index, str(aside))
