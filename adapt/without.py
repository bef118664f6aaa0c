"""Imports of a library without what it would take along and not need."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Inside, imports of packages that are not loaded yet fail as if these were not installed."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is what `import` takes for "there is none"
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
