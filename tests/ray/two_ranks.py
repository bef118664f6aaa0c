"""A job with two ranks, which a test runs in its own process."""

import os
import time
from pathlib import Path
from typing import Any

import psutil

from adapt.config import ResourcesConfig
from adapt.ray.connection import OWN_RAY
from adapt.ray.runtime import connect


def two_ranks(config: dict[str, Any]) -> None:
    """Runs on each rank until the rank is killed. Rank 0 writes what the test checks to a file."""
    import torch
    import torch.distributed as dist

    summed = torch.ones(1)
    dist.all_reduce(summed)
    dist.new_group([0, 1])
    if dist.get_rank() == 0:
        addresses = listening_addresses(config["driver"])
        found = [os.environ[OWN_RAY], str(dist.get_world_size()), str(summed.item()), *addresses]
        file = Path(config["file"])
        file.with_suffix(".new").write_text("\n".join(found))
        file.with_suffix(".new").rename(file)
    while True:
        dist.barrier()
        time.sleep(0.1)


def listening_addresses(driver: int) -> list[str]:
    """Returns the addresses at which a process and its descendants listen."""
    root = psutil.Process(driver)
    sockets = [each for process in (root, *root.children(recursive=True)) for each in process.net_connections("inet")]
    return [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]


def train_two_ranks(folder: str) -> None:
    from adapt.terminal.console import run_job

    def job() -> None:
        told = {"driver": os.getpid(), "file": f"{folder}/found"}
        connect(ResourcesConfig())
        from adapt.train.ray_train import RankedRun, on_all_ranks

        on_all_ranks(RankedRun(two_ranks, told, Path(folder), "look", ResourcesConfig(workers=2), [2], 1))

    run_job(job)
