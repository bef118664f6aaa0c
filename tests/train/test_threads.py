"""Threads of a process on a CPU."""

import os

import pytest
import torch

from adapt.train.threads import use_threads


@pytest.mark.parametrize(("count", "shared_by", "expected"), [(4, 1, 4), (4, 2, 2), (1, 2, 1), (0.5, 1, 1)])
def test_processes_share_the_threads_and_each_has_one(count, shared_by, expected, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    use_threads(count, shared_by)
    assert given == [expected]


def test_without_a_count_there_are_as_many_as_cores(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    use_threads()
    use_threads(shared_by=3)
    assert given == [6, 2]
