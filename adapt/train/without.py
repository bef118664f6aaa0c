"""Imports of a library without what it would take along and not need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(package: str) -> Iterator[None]:
    """Inside, an import of a package that is not loaded yet fails as if it were not installed."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # what `import` takes for "there is none"
    try:
        yield
    finally:
        del sys.modules[package]
