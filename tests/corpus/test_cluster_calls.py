"""Tests parallel calls: results stay in order, few calls run ahead of the reader, and a loaded function is reused."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapt.config import ResourcesConfig
from adapt.corpus.cluster_calls import AHEAD, Cluster
from adapt.support.errors import DataError


class Squares:
    """For each number below the argument, yields its square, how often this object was called, and the process id."""

    calls = 0

    def __call__(self, number: int) -> Iterator[tuple[int, int, int]]:
        self.calls += 1
        if number < 0:
            raise DataError("a negative number", "give another")
        for each in range(number):
            yield each**2, self.calls, os.getpid()


@pytest.mark.parametrize("on_device", [False, True])
def test_results_are_in_the_order_of_the_calls(ray_cluster: None, tmp_path: Path, on_device: bool) -> None:
    drawn: list[int] = []

    def numbers() -> Iterator[int]:
        for number in (5, 0, 3, 1, 4, 2, 6):
            drawn.append(number)
            yield number

    found: list[list[Any]] = []
    cluster = Cluster(ResourcesConfig(), tmp_path)
    for answers in cluster.spread(Squares(), numbers(), on_device):
        assert len(drawn) <= len(found) + 2 * AHEAD  # calls are made only shortly before their results are read
        found.append(list(answers))
    assert [[square for square, *_ in each] for each in found] == [[n**2 for n in range(k)] for k in drawn]
    processes = {process for each in found for *_, process in each}
    assert os.getpid() not in processes
    if on_device:  # without GPUs there is one process per machine, and it keeps the loaded function between calls
        assert len(processes) == 1
        assert max(calls for each in found for _, calls, _ in each) == 7
        ((again,),) = cluster.spread(Squares(), [1], on_device)
        assert again == (0, 1, *processes)  # another function object counts its own calls from 1, in the same process


@pytest.mark.parametrize("on_device", [False, True])
def test_an_error_of_the_function_is_raised_unchanged(ray_cluster: None, tmp_path: Path, on_device: bool) -> None:
    answers = Cluster(ResourcesConfig(), tmp_path).spread(Squares(), [1, -1, 2, 3, 4, 5, 6], on_device)
    with pytest.raises(DataError, match="a negative number"):
        [list(some) for some in answers]
