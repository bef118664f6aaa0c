"""Runs the ranks of a training run without Ray: processes that form a gloo group and run functions for a test."""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.forks.server import forkserver

TIMEOUT_S = 1200


class Ranks:
    """Processes of a gloo group that stay alive over several calls.

    Args:
        world: number of ranks.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")  # deleted with this object
        self.temporary = Path(self._folder.name)
        """Folder of the ranks' temporary files, separate from the temporary files of other tests."""
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls a module-level function with the same arguments on every rank.

        Returns:
            Results of the function, one per rank.
        """
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send((function, arguments))
            answers = self._answers()
        except BaseException:
            self.stop()  # the other ranks may wait for the rank that failed
            raise
        return [pickle.loads(answer) for answer in answers]

    def stop(self) -> None:
        """Ends all processes. The next call of `run` starts new processes."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(2)
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        # the ranks meet through a file, because another process may take a port before rank 0 binds it
        meeting = Path(tempfile.mkdtemp(dir=self.temporary), "meeting")
        forks = forkserver()
        for rank in range(self.world):
            ours, theirs = forks.Pipe()
            life = rank, self.world, meeting, theirs, self.temporary
            process = forks.Process(target=_serve, args=life, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _answers(self) -> list[bytes]:
        answers: list[bytes | None] = [None] * self.world
        end = time.monotonic() + TIMEOUT_S
        while None in answers:
            for rank, pipe in enumerate(self._pipes):
                if answers[rank] is None and pipe.poll(0.01):
                    succeeded, answer = pipe.recv()
                    assert succeeded, f"on rank {rank} of {self.world}:\n{answer}"
                    answers[rank] = answer
            assert time.monotonic() < end, f"no answer from {answers.count(None)} of {self.world} ranks"
        return answers  # type: ignore[return-value]


def _serve(rank: int, world: int, meeting: Path, pipe: Connection, temporary: Path) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }  # DeepSpeed requires an address, but uses the existing group
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "NODE_RANK": "0"}
    tempfile.tempdir = str(temporary)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world, timeout=timeout)
    while call := pipe.recv():
        function, arguments = call
        try:
            answer = True, pickle.dumps(function(*arguments))
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send(answer)
