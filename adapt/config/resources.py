"""Resources of a job, storage of its results, and trackers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from adapt.config.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Workers: TypeAlias = int | tuple[int, int]
"""How many training processes there are; or the fewest and the most, where it may change."""


def fewest_of(workers: Workers) -> int:
    """The number of workers, or the lower end of its range."""
    return workers if isinstance(workers, int) else workers[0]


def most_of(workers: Workers) -> int:
    """The number of workers, or the upper end of its range."""
    return workers if isinstance(workers, int) else workers[1]


@dataclass(frozen=True)
class ResourcesConfig:
    """Where the work runs."""

    address: str | None = None
    """Address of a Ray cluster; null takes RAY_ADDRESS from the environment, else starts Ray on this machine."""
    workers: PositiveInt | tuple[int, int] = 1
    """Training processes, one for each device; or [fewest, most]: training starts with as many as there is room for,
    goes on with fewer when a node is lost, and with more when one comes. The numbers between them that
    training.global_batch_size is no multiple of are passed over."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPU cores each training process reserves."""
    trainings_per_machine: PositiveInt | None = None
    """Trainings without GPUs that share a machine, each of which computes on its share of the cores; small ones are
    quicker side by side. null is 1, which computes on all cores, and in a search on this machine as many as
    tune.at_once, if there is a core for each worker and memory for all."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs each training process holds; null is 1 where the cluster has GPUs now and 0 where it has none. Set this
    field on a cluster that starts GPU nodes only when they are asked for."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: what is sharded over the workers (1 optimizer, 2 + gradients, 3 + parameters)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What is kept in the memory of the machine in place of the GPU's: `none` nothing, `optimizer` the optimizer's
    state (ZeRO 2 and 3), `all` the parameters too (ZeRO 3)."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of one device [GiB], for the check that the training fits; null takes what the cluster's devices have."""
    price_per_device_hour: NonNegativeFloat | None = None
    """Price of one device for an hour, in any currency, for `plan` and the records."""
    max_failures: NonNegativeInt = 3
    """How often a run begins again at its last checkpoint after a worker has crashed, before it gives up. Node
    preemptions do not count."""
    stages_at_once: PositiveInt | None = None
    """At most this many independent stages of a chain run side by side; null is as many as fit on this machine. On a
    cluster, null is 16, which the cluster starts as it has room."""
    wait_s: NonNegativeFloat = 300.0
    """How long to wait for an autoscaling cluster to bring the resources asked for [s]."""

    @property
    def trainings(self) -> int:
        """How many trainings without GPUs share a machine."""
        return self.trainings_per_machine or 1


@dataclass(frozen=True)
class StorageConfig:
    """Where results go."""

    root: str = "runs"
    """Folder for all stages, their outputs and records. On a cluster, every node must be able to see this folder."""


@dataclass(frozen=True)
class TrackingConfig:
    """Experiment trackers. TensorBoard files are always written, into the training stage's folder."""

    mlflow_uri: str | None = None
    """MLflow tracking server or folder; null for none. Needs the extra `dontstop[mlflow]`."""
    wandb_project: str | None = None
    """Weights & Biases project; null for none. Needs the extra `dontstop[wandb]` and WANDB_API_KEY set."""
