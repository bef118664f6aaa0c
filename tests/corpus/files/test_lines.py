"""Tests that the ranges of a file together contain each line and paragraph once, wherever the file is cut.

Reading a very long line must need little memory.
"""

import io
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapt.corpus.files.formats import Bad
from adapt.corpus.files.lines import TOO_LONG, lines, paragraphs

Unit = Callable[..., Iterator[bytes | Bad]]
CONTENT = st.lists(st.sampled_from([b"", b" ", b"a", b"bb b", b"ccccc"]), max_size=12).map(b"\n".join)


def opened(content: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(content), 16)  # type: ignore[arg-type]


def in_ranges(unit: Unit, content: bytes, cuts: list[int], limit: int = 1000) -> list[bytes | Bad]:
    return [
        record for start, stop in pairwise([0, *cuts, None]) for record in unit(opened(content), start, stop, limit)
    ]


def brute_paragraphs(content: bytes) -> list[bytes]:
    found: list[bytes] = [b""]
    for line in content.splitlines(keepends=True):
        found = [*found, b""] if line.isspace() else [*found[:-1], found[-1] + line]
    return [paragraph for paragraph in found if paragraph]


@given(CONTENT, st.sets(st.integers(1, 40), max_size=4))
def test_ranges_together_contain_each_line_once_in_order(content: bytes, cuts: set[int]) -> None:
    assert in_ranges(lines, content, sorted(cuts)) == content.splitlines(keepends=True)


@given(CONTENT, st.sets(st.integers(1, 40), max_size=4))
def test_ranges_together_contain_each_paragraph_once_in_order(content: bytes, cuts: set[int]) -> None:
    assert in_ranges(paragraphs, content, sorted(cuts)) == brute_paragraphs(content)


def test_a_line_belongs_to_the_range_it_begins_in() -> None:
    content = b"one\ntwo\nthree\n"
    assert list(lines(opened(content), 0, 4, 100)) == [b"one\n"]
    assert list(lines(opened(content), 4, 5, 100)) == [b"two\n"]
    assert list(lines(opened(content), 5, 8, 100)) == []
    assert list(lines(opened(content), 5, None, 100)) == [b"three\n"]


@given(CONTENT, st.integers(1, 6), st.sets(st.integers(1, 40), max_size=3))
def test_a_line_over_the_limit_does_not_affect_others(content: bytes, limit: int, cuts: set[int]) -> None:
    expected = [line if len(line) <= limit else TOO_LONG for line in content.splitlines(keepends=True)]
    assert in_ranges(lines, content, sorted(cuts), limit) == expected


@given(CONTENT, st.integers(2, 8), st.sets(st.integers(1, 40), max_size=3))
def test_a_paragraph_over_the_limit_does_not_affect_others(content: bytes, limit: int, cuts: set[int]) -> None:
    expected = [each if len(each) <= limit else TOO_LONG for each in brute_paragraphs(content)]
    assert in_ranges(paragraphs, content, sorted(cuts), limit) == expected


class OneLine(io.RawIOBase):
    """A stream of 200 MB without a newline, followed by a short line."""

    def __init__(self) -> None:
        self.left = 200_000_000
        self.end = io.BytesIO(b"\nafter\n")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self.left:
            return self.end.readinto(buffer)
        count = min(len(buffer), self.left)
        self.left -= count
        buffer[:count] = b"x" * count
        return count


@pytest.mark.parametrize("unit", [lines, paragraphs])
def test_a_line_of_200_mb_is_skipped_without_holding_it_in_memory(unit: Unit) -> None:
    tracemalloc.start()
    found = list(unit(io.BufferedReader(OneLine(), 1 << 20), 0, None, 1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == ([TOO_LONG, b"after\n"] if unit is lines else [TOO_LONG])
    assert isinstance(found[0], Bad)
    assert peak < 10_000_000
