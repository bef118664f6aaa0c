"""Trains the tiny model of tests/train/toy.py on Ray Train, while ranks join and leave.

The module is run as a script with the settings as JSON.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adapt.config import ResourcesConfig
from adapt.method.base import Method
from adapt.ray.runtime import connect, hide_unreserved_gpus
from adapt.train.ray_train import RankedRun, on_all_ranks
from adapt.train.training_run import CHECKPOINTS

NAME = "toy"
SIZES = {"global_batch": 12, "micro_batch": 2, "dropout": 0.3}
PACE_S = 0.1


@dataclass(frozen=True)
class ToyRun:
    """Settings of a training run of the tiny model."""

    folder: str
    address: str
    workers: tuple[int, int]
    steps: int
    zero_stage: int = 2
    interval: int = 5
    """Number of steps between checkpoints."""
    dies_in_save: bool = False
    """Whether rank 1 is killed while it writes the checkpoint that a preemption notice requests."""
    max_failures: int = 1


def main(told: ToyRun) -> None:
    from adapt.train import elastic_policy

    elastic_policy.SETTLE_S, elastic_policy.GROWTH_LOOK_S, elastic_policy.GROWTH_LOOKS = 2.0, 0.5, 3
    failures = told.max_failures
    resources = ResourcesConfig(address=told.address, workers=told.workers, gpus_per_worker=0, max_failures=failures)
    connect(resources)
    sizes = [number for number in range(told.workers[0], told.workers[1] + 1) if SIZES["global_batch"] % number == 0]
    on_all_ranks(
        RankedRun(on_a_rank, {"told": asdict(told)}, Path(told.folder), NAME, resources, sizes, keep_checkpoints=2)
    )


def on_a_rank(config: dict[str, Any]) -> None:
    hide_unreserved_gpus()
    import ray
    import ray.train
    import torch.distributed as dist

    from adapt.train.checkpoints import checkpoint, requested_checkpoints
    from adapt.train.checkpoints.checkpoint import Checkpoints
    from adapt.train.failure import portable_errors
    from adapt.train.restarts import RestartLog
    from tests.train.toy import Case, build, feed

    requested_checkpoints.ASK_S = 1.0
    told = ToyRun(**{**config["told"], "workers": tuple(config["told"]["workers"])})
    folder = Path(told.folder)
    with portable_errors():
        training = {"log_interval_steps": 1, "checkpoint_interval_steps": told.interval}
        case = Case(told.zero_stage, told.steps, training=training, **SIZES)
        node = ray.get_runtime_context().get_node_id()
        rank, world = dist.get_rank(), dist.get_world_size()
        loop = replace(
            build(case), wishes=requested_checkpoints.CheckpointRequests(rank == 0, folder, nodes_may_go=True)
        )
        (folder / f"node-{rank}").write_text(node)
        if told.dies_in_save and rank == 1:
            checkpoint.write_seal = partial(_killed, loop, checkpoint.write_seal)  # type: ignore[assignment]
        checkpoints = Checkpoints(loop.engine, Method(), folder / CHECKPOINTS / NAME, config["sealing"])
        progress = checkpoints.load()
        if rank == 0:
            RestartLog(folder).group_began(progress.step, [node], {node: f"host {node[:8]}"})

        def report(metrics: dict[str, Any]) -> None:
            if rank == 0:
                with (folder / "steps.jsonl").open("a") as file:
                    line = {name: metrics[name] for name in ("step", "loss", "tokens")}
                    file.write(json.dumps({**line, "world": world, "node": node}) + "\n")

        def paced() -> Iterator[Any]:
            for share in feed(progress.step, told.steps, case.global_batch):
                time.sleep(PACE_S)
                if (folder / f"kill-on-{node}").exists():
                    (folder / f"kill-on-{node}").unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield share

        loop.run(paced(), progress, report, checkpoints.save)


def _killed(loop: Any, write_seal: Callable[..., None], *arguments: Any) -> None:
    """Kills this process before it seals its share of a checkpoint that a preemption notice requested."""
    if loop.wishes.heard:
        os.kill(os.getpid(), signal.SIGKILL)
    write_seal(*arguments)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    main(ToyRun(**{**given, "workers": tuple(given["workers"])}))
