"""Ranks for all tests of training."""

from collections.abc import Callable, Iterator

import pytest

from tests.train.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """Gives a running group of the wanted number of ranks."""
    groups: dict[int, Ranks] = {}
    yield lambda world: groups.setdefault(world, Ranks(world))
    for group in groups.values():
        group.stop()
