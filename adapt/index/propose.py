"""Candidates without comparing all: inverted lists (IVF) and graphs (HNSW), by faiss.

The centres of the lists are the same in all parts, so a search looks at the same vectors whatever part they are in.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adapt.index.part import VectorPart
from adapt.index.plan import LINKS, IndexPlan, code_bytes
from adapt.runner.files import file_aside

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
