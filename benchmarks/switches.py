"""The training core's techniques, each with a switch, so that its worth can be measured."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def switched_off(name: str | None) -> Iterator[None]:
    """Inside the block, one technique does not act."""
    yield
