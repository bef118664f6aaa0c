"""Configuration of a job's resources, of the storage of its results, and of experiment trackers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from adapt.config.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Workers: TypeAlias = int | tuple[int, int]
"""Number of training processes, or its smallest and largest value if it may change during a training."""


def fewest_of(workers: Workers) -> int:
    """Returns the number of workers, or the lower end of its range."""
    return workers if isinstance(workers, int) else workers[0]


def most_of(workers: Workers) -> int:
    """Returns the number of workers, or the upper end of its range."""
    return workers if isinstance(workers, int) else workers[1]


@dataclass(frozen=True)
class ResourcesConfig:
    """Where the work runs, and on how many devices."""

    address: str | None = None
    """Address of a Ray cluster; null takes RAY_ADDRESS from the environment, or else starts Ray on this machine."""
    workers: PositiveInt | tuple[int, int] = 1
    """Number of training processes, one per device, or a range [fewest, most]: training starts with as many as fit,
    continues with fewer when a node is lost, and with more when one joins. Numbers that do not divide
    training.global_batch_size are skipped."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPU cores reserved by each training process."""
    trainings_per_machine: PositiveInt | None = None
    """Number of CPU trainings that share a machine, each on its share of the cores; small models train faster side by
    side. null is 1, on all cores; in a search on one machine it is tune.at_once, if each worker has a core and memory
    suffices."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs reserved by each training process; null is 1 if the cluster has GPUs at the start, else 0. Set this field on
    an autoscaling cluster that adds GPU nodes on demand."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: what is sharded over the workers (1: optimizer state, 2: also gradients, 3: also
    parameters)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What is kept in the machine's memory instead of the GPU's: `none` nothing, `optimizer` the optimizer state (ZeRO
    2 and 3), `all` the parameters too (ZeRO 3)."""
    device_memory_gib: PositiveFloat | None = None
    """Memory of one device [GiB], to check that the training fits; null takes the memory of the cluster's devices."""
    price_per_device_hour: NonNegativeFloat | None = None
    """Price of one device per hour, in any currency, shown in plans and records."""
    max_failures: NonNegativeInt = 3
    """Number of times that a training restarts from its last checkpoint after a worker crashed, before it fails. Node
    preemptions do not count."""
    stages_at_once: PositiveInt | None = None
    """Largest number of independent stages of a chain that run at the same time; null is as many as fit on this
    machine. On a cluster, null is 16, which the cluster starts when it has room."""
    wait_s: NonNegativeFloat = 300.0
    """Time to wait for an autoscaling cluster to provide the requested resources [s]."""

    @property
    def trainings(self) -> int:
        """Number of CPU trainings that share a machine."""
        return self.trainings_per_machine or 1


@dataclass(frozen=True)
class StorageConfig:
    """Where results are stored."""

    root: str = "runs"
    """Folder of all stages, their outputs and records. On a cluster, all nodes must see this folder."""


@dataclass(frozen=True)
class TrackingConfig:
    """Experiment trackers. TensorBoard files are always written, in the training stage's folder."""

    mlflow_uri: str | None = None
    """MLflow tracking server or folder; null for none. Needs the extra `dontstop[mlflow]`."""
    wandb_project: str | None = None
    """Weights & Biases project; null for none. Needs the extra `dontstop[wandb]` and WANDB_API_KEY set."""


Event: TypeAlias = Literal["finish", "failure"]
"""Reason for a message to a webhook."""


@dataclass(frozen=True)
class NotifyConfig:
    """Messages to a webhook, for example of Slack, when a job, a chain or a search ends.

    No job waits for the receiver or fails because of it.
    """

    webhook: str | None = None
    """Name of the environment variable with the webhook's address, such as DONTSTOP_WEBHOOK. The address itself is a
    secret and must not stand in a configuration. null sends no messages. On a cluster, the variable must be set where
    the job's driver runs."""
    form: Literal["json", "slack"] = "json"
    """Form of a message: `json` an object with event, about, text, host, time, seconds and path; `slack` the object
    with one `text` that Slack and compatible services take."""
    events: list[Event] = field(default_factory=lambda: ["finish", "failure"])
    """What messages are sent about: `finish` that something ran and succeeded, `failure` that it failed or was
    stopped."""
