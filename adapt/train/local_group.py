"""Starts a private process group for ranks that all run on this machine.

The ranks find each other through a file, and listen only on loopback. With Ray Train's own backend, rank 0 would open
PyTorch's TCPStore, which listens on all interfaces and requires no token.

Rank 0 also records Ray's placement group, so that the driver can free its cores and GPUs if Ray Train's controller was
killed. Ray Train itself would free them through Ray's dashboard, which does not run if the job started Ray.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from ray.util import get_current_placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup

_RESERVED = "placement_group"
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass
class LocalTorchConfig(TorchConfig):
    """Settings of a process group whose ranks all run on this machine.

    Attributes:
        folder: an existing folder that only this user may enter. The ranks create their store in it.
    """

    folder: str = ""

    @property
    def backend_cls(self) -> type[Backend]:
        """Class that starts and ends the process group."""
        return LocalBackend


class LocalBackend(Backend):
    """Starts the process group of the ranks, which meet through a file, and ends it as Ray Train's backend does."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Starts the process group, after all ranks have started and before they train.

        After a crash, the new group gets a new file, because the old file contains the addresses of lost ranks.
        """
        store = Path(tempfile.mkdtemp(prefix="store-", dir=backend_config.folder)) / "store"
        ranks = range(len(worker_group))
        shared = len(ranks), backend_config.backend, str(store), backend_config.timeout_s
        ray.get([worker_group.execute_single_async(rank, _begin, rank, *shared) for rank in ranks])

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """Ends the process group as Ray Train's own backend does."""
        TorchConfig().backend_cls().on_shutdown(worker_group, backend_config)


def free_reserved(folder: Path) -> None:
    """Frees the cores and GPUs of a training whose controller died.

    Otherwise, Ray would reserve them until the driver ends.

    Args:
        folder: the training's `LocalTorchConfig.folder`.
    """
    for file in folder.glob(f"*/{_RESERVED}"):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(file.read_text())))


def _begin(rank: int, world: int, backend: str, store: str, timeout_s: int) -> None:
    """Joins the process group. Each rank calls this function."""
    import torch.distributed as dist

    if rank == 0 and (reserved := get_current_placement_group()):
        Path(store).with_name(_RESERVED).write_text(reserved.id.hex())
    context = ray.train.get_context()
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(context.get_local_rank()),
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
        NODE_RANK="0",
        MASTER_ADDR="127.0.0.1",  # DeepSpeed requires these two variables, but uses the existing group
        MASTER_PORT="0",
        GLOO_SOCKET_IFNAME=_LOOPBACK,
        NCCL_SOCKET_IFNAME=_LOOPBACK,
    )
    # as in Ray Train, so that a collective that hangs times out
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=world, timeout=timeout)
