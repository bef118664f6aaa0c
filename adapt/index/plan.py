"""Which kind of index suits so many vectors.

| vectors | what fits into the memory | queries | kind | memory a vector, d dimensions [bytes] | what it does |
|---|---|---|---|---|---|
| up to 2^20 | | | flat | 0 | compares all; exact |
| more | codes and graph | as many as vectors, or more | hnsw | 2 d + 280 | walks a graph of neighbours |
| more | codes | fewer | ivf | d + 8 | compares those near the same centres, in 8 bits a dimension |
| more | less | any | ivf_pq | d / 8 + 8 | the same, in 1 bit a dimension |

To build a graph takes some hundred comparisons a vector, and to walk it some thousand a query, where inverted lists
look at a share of all vectors: so it pays where every vector is a query too. The vectors themselves (2 d bytes each)
stay on disk, whatever the kind; candidates are read there.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Literal, get_args

from adapt.errors import ConfigError, DataError
from adapt.nearest import nearest

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
