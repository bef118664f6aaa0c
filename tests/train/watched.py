"""Trains a tiny model on real nodes, and reads the reports of the run while it trains."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapt.train.checkpoints.stored_checkpoints import newest_whole, step_of
from adapt.train.training_run import CHECKPOINTS
from cluster.here.nodes import Nodes
from tests.forks.nodes import become_member
from tests.forks.server import Forked
from tests.train import elastic_toy
from tests.train.elastic_toy import NAME, ToyRun

STEPS = 2000
"""Number of configured steps, which no test reaches, because each test stops its run early."""
PATIENCE_S = 300.0


class Run:
    """Trains the tiny model in a separate process."""

    def __init__(
        self,
        cluster: Nodes,
        folder: Path,
        workers: tuple[int, int],
        interval: int,
        dies_in_save: bool = False,
        max_failures: int = 1,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.told = folder / "told"
        given = {"interval": interval, "dies_in_save": dies_in_save, "max_failures": max_failures}
        run = ToyRun(str(folder), cluster.address, workers, STEPS, **given)
        environment = {**cluster.environment, "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5", **environment}
        files = [f"{folder}/out", str(self.told)]
        self.process = Forked(become_member, elastic_toy.__file__, [json.dumps(asdict(run))], environment, files)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the reports of all finished steps, in order."""
        file = self.folder / "steps.jsonl"
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def wait(self, holds: Callable[[list[dict[str, Any]]], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds(self.rows()):
            assert self.process.poll() is None, self.told.read_text()
            assert time.monotonic() < end, f"{self.rows()[-3:]} {self.told.read_text()}"
            time.sleep(0.05)

    def saved(self) -> int:
        whole = newest_whole(self.folder / CHECKPOINTS / NAME)
        return step_of(whole) if whole else 0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
