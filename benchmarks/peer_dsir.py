"""Runs the peer of our DSIR: the authors' package `data-selection`, on one core, with no minimum document length.

The package is not a dependency. To compare with it, install it into a folder:

    python -m pip install --no-deps --target /tmp/peer data-selection==1.0.3 nltk defusedxml
    PYTHONPATH=/tmp/peer python -m benchmarks.select
"""

import tempfile
import time
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

IS_INSTALLED = find_spec("data_selection") is not None
BUCKETS = 10_000
FEW_BUCKETS = 1000


def package_seconds(pool: Path, target: Path, count: int) -> float:
    """Returns the CPU time of the package's selection, from reading the files to the selected documents [s]."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        selection = _fitted(pool, target, folder, BUCKETS)
        selection.resample(f"{folder}/chosen", count, cache_dir=f"{folder}/parts")
        return time.process_time() - start


def package_weights(pool: Path, target: Path) -> np.ndarray:
    """Returns the package's log weight of each document: float64 [documents].

    N-grams are hashed into FEW_BUCKETS buckets by our hash function. Both sides get the same words: texts are in lower
    case and have no punctuation.
    """
    package: Any = import_module("data_selection.hashed_ngram_dsir")
    package.hash_buckets = _bucket
    with tempfile.TemporaryDirectory() as folder:
        selection = _fitted(pool, target, folder, FEW_BUCKETS)
        weights: np.ndarray = np.load(selection.log_importance_weights_dir / "0.npy")
        return weights


def _fitted(pool: Path, target: Path, folder: str, buckets: int) -> Any:
    selection = import_module("data_selection").HashedNgramDSIR(
        [str(pool)], [str(target)], f"{folder}/cache", num_proc=1, num_buckets=buckets, min_example_length=0
    )
    selection.fit_importance_estimator(num_tokens_to_fit="all")
    selection.compute_importance_weights()
    return selection


@lru_cache(maxsize=2**21)
def _bucket(text: str, num_buckets: int) -> int:
    from adapt.select.grams import grams

    return int(grams([text], 2, num_buckets).buckets[-1])
