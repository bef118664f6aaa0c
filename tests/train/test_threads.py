"""Threads of a process on a CPU."""

import os

import pytest
import torch

from adapt.train.threads import rank_device, use_threads


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


def test_ranks_of_trainings_that_share_a_machine_share_its_cores(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for world, trainings in ((1, 1), (1, 2), (2, 2), (4, 4)):
        assert rank_device(world, trainings) == torch.device("cpu")
    assert given == [8, 4, 2, 1]
