"""Replaces Ray datasets with in-process datasets, which give the same batches in a thousandth of the time."""

import builtins
from collections.abc import Callable, Iterable, Iterator
from inspect import isgenerator
from typing import Any

import numpy as np
import pyarrow as pa

Batch = dict[str, Any]


class Here:
    """A dataset whose batches have one row each and are computed when they are read."""

    def __init__(self, batches: Iterable[Batch | pa.Table]) -> None:
        self._batches = batches

    def map_batches(self, function: Callable[[Any], Any], batch_format: str = "numpy", **options: Any) -> "Here":
        """Applies a function to each batch. Ray's other options are ignored, because they do not affect results."""
        return Here(self._mapped(function, batch_format))

    def _mapped(self, function: Callable[[Any], Any], batch_format: str) -> Iterator[Any]:
        for batch in self._batches:
            made = function(_arrow(batch) if batch_format == "pyarrow" else _numpy(batch))
            yield from made if isgenerator(made) else [made]

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Yields all rows."""
        return (row for batch in self._batches for row in _arrow(batch).to_pylist())

    def iter_batches(self, batch_format: str = "numpy", **options: Any) -> Iterator[Any]:
        """Yields the batches unchanged."""
        return (_arrow(batch) if batch_format == "pyarrow" else _numpy(batch) for batch in self._batches)


def from_items(items: list[dict[str, Any]], **options: Any) -> Here:
    """Replaces ray.data.from_items."""
    return Here({name: _column(value) for name, value in item.items()} for item in items)


def range(number: int, **options: Any) -> Here:
    """Replaces ray.data.range."""
    return Here({"id": np.array([each])} for each in builtins.range(number))


def _column(value: Any) -> np.ndarray:
    return np.array([value], object if isinstance(value, str) else None)


def _arrow(batch: Batch | pa.Table) -> pa.Table:
    if isinstance(batch, pa.Table):
        return batch
    return pa.table({name: pa.array(values) for name, values in batch.items()})


def _numpy(batch: Batch | pa.Table) -> Batch:
    if isinstance(batch, pa.Table):
        return {name: batch.column(name).to_numpy() for name in batch.column_names}
    return {name: np.asarray(values) for name, values in batch.items()}
