"""Where the work runs, and where its results go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adapt.config.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class ResourcesConfig:
    """Where the work runs."""

    address: str | None = None
    """Address of a Ray cluster; null takes RAY_ADDRESS from the environment, else starts Ray on this machine."""
    workers: PositiveInt = 1
    """Training processes (one a device)."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPU cores each training process reserves."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs each training process holds; null is 1 where the cluster has GPUs now and 0 where it has none
    (set it where GPU nodes are scaled up from zero)."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: what is sharded over the workers (1 optimizer, 2 + gradients, 3 + parameters)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What a GPU leaves in the memory of its machine: nothing, the optimizer's state (ZeRO 2 and 3), or the parameters
    too (ZeRO 3)."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of one device [GiB], for the check that the training fits; null looks at the cluster's."""
    price_per_device_hour: NonNegativeFloat | None = None
    """Price of one device for an hour, in any currency, for `plan` and the records."""
    max_failures: NonNegativeInt = 3
    """Worker crashes after which the run gives up. Node preemptions do not count."""
    stages_at_once: PositiveInt | None = None
    """Independent stages of a chain that run side by side; null is as many as fit on this machine, and 16 on a cluster,
    which starts them as it has room."""
    wait_s: NonNegativeFloat = 300.0
    """How long to wait for an autoscaling cluster to bring the resources asked for [s]."""


@dataclass(frozen=True)
class StorageConfig:
    """Where results go."""

    root: str = "runs"
    """Folder for all stages, their outputs and records. On a cluster, one that every node can see."""


@dataclass(frozen=True)
class TrackingConfig:
    """Experiment trackers. TensorBoard files are always written, into the training stage's folder."""

    mlflow_uri: str | None = None
    """MLflow tracking server or folder; null for none. Needs the extra `dontstop[mlflow]`."""
    wandb_project: str | None = None
    """Weights & Biases project; null for none. Needs the extra `dontstop[wandb]` and WANDB_API_KEY set."""
