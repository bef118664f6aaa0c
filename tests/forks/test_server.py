"""Tests that forked processes have different random ids, like separate processes."""

import threading
from multiprocessing.connection import Connection

import pytest

from tests.forks.server import forkserver


def draw(found: Connection) -> None:
    from ray import JobID, PlacementGroupID

    def note() -> None:
        found.send_bytes(PlacementGroupID.of(JobID.from_int(1)).binary())

    thread = threading.Thread(target=note)
    thread.start()
    thread.join()


@pytest.mark.heavy
def test_forks_draw_different_ids() -> None:
    """Ray draws task ids from a random generator. Forks would share its state if it was used before the fork."""
    forks, drawn = forkserver(), set()
    for _ in range(2):
        ours, theirs = forks.Pipe()
        process = forks.Process(target=draw, args=(theirs,))
        process.start()
        drawn.add(ours.recv_bytes())
        process.join()
    assert len(drawn) == 2
