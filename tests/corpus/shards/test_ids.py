"""Repeated ids are counted as a set of all of them would, wherever the borders of files and ranges lie."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapt.corpus.shards import ids
from adapt.corpus.shards.ids import IdWriter, count_repeats


def counted(items: Sequence[Sequence[object]], folder: Path) -> int:
    for file in folder.glob("*"):
        file.unlink()
    for number, item in enumerate(items):
        writer = IdWriter(folder, number)
        for identifier in item:
            writer.add(identifier)
        writer.close()
    return count_repeats(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(st.lists(st.integers(0, 30) | st.text(max_size=2)), max_size=4))
def test_as_a_set_counts(items: list[list[object]], tmp_path: Path) -> None:
    found = [str(identifier) for item in items for identifier in item]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "RUN", 3)
        patch.setattr(ids, "RANGE", 5)
        assert counted(items, tmp_path) == len(found) - len(set(found))


def test_many(tmp_path: Path) -> None:
    assert counted([range(1000), range(900, 2000), ["x"] * 10], tmp_path) == 100 + 9


def test_none(tmp_path: Path) -> None:
    assert counted([], tmp_path) == 0
