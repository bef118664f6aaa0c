"""Fine-tunes one model on one task with one seed as a Ray task, and writes the result.

This module imports neither torch nor transformers, because the driver does not need them.
"""

import json
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import Any

import ray

from adapt.config import Config, FinetuneConfig, ResourcesConfig
from adapt.model.locate import Pretrained
from adapt.ray.node_files import on_node
from adapt.ray.runtime import await_resources, hide_unreserved_gpus, telling_stalls, user_errors
from adapt.runner.files import write_atomically
from adapt.support import errors, heartbeat

SMALLEST_GPU_SHARE = 0.1
TAKES_LESS = "lower finetune.max_length, or use a device with more memory"
MICRO_BATCH = "finetune.micro_batch"
TRAINED = ("fine_tune", "lora")
"""Modes that compute gradients for the encoder. In these modes, a smaller micro-batch needs less memory."""
GPU_PARTS = 10_000
"""Number of parts into which Ray divides a GPU. Shares are rounded down so that their sum does not exceed one GPU."""


@dataclass
class FinetuneRun:
    """The input of one run of fine-tuning."""

    config: Config
    pretrained: Pretrained
    """The model to start from."""
    task: str
    """The folder of the prepared task."""
    seed: int


def run_finetuning(run: FinetuneRun, folder: Path) -> dict[str, Any]:
    """Fine-tunes in a Ray task on the connected cluster, and writes predictions and curve into `folder`.

    Returns:
        The fields of the stage's result, `adapt.stage.finetuning.Finetuned`, except `transductive`.

    Raises:
        ClusterError: no machine has the cores or GPUs that are configured for a run.
        ConfigError: `finetune.save_model` is set and the model cannot be saved.
        DataError: a split is empty.
        DeviceMemoryError: the device, or its machine, ran out of memory.
        ModelError: the checkpoint cannot be used.
        TrainingError: the loss is not finite.
    """
    cpus, gpus = run.config.finetune.cpus_per_seed, gpus_per_seed(run.config.finetune)
    await_room(run.config.resources, cpus, gpus)
    task = ray.remote(num_cpus=cpus, num_gpus=gpus)(_work)
    with user_errors(*fits_with_less(run.config.finetune), MICRO_BATCH), telling_stalls("finetune", folder):
        result: RunResult = ray.get(task.remote(run, folder.absolute()))
    result.write(folder)
    return {**result.metrics, "device_seconds": result.metrics["seconds"] * (gpus or 1)}


def fits_with_less(finetune: FinetuneConfig) -> tuple[str, int]:
    """Returns advice on how to reduce the memory of a run, and the run's number of examples per forward pass.

    The number is 1 if fewer examples per pass would not reduce the memory.
    """
    if finetune.mode in TRAINED and finetune.passing > 1:
        return f"set {MICRO_BATCH} to {finetune.passing // 2}", finetune.passing
    return TAKES_LESS, 1


def gpus_per_seed(finetune: FinetuneConfig) -> float:
    """Returns the share of a GPU that a run reserves.

    If no share is configured, the runs of all seeds share one GPU equally. Without GPUs in the cluster, the share is 0.
    """
    if finetune.gpus_per_seed is not None:
        return finetune.gpus_per_seed
    share = max(SMALLEST_GPU_SHARE, floor(GPU_PARTS / max(1, len(finetune.seeds))) / GPU_PARTS)
    return share if ray.cluster_resources().get("GPU", 0) else 0.0


def await_room(resources: ResourcesConfig, cpus: float, gpus: float) -> None:
    """Waits until a machine has these cores and GPUs free. Raises ClusterError if no machine has that many."""
    try:
        await_resources(replace(resources, workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus))
    except errors.ClusterError as error:
        raise errors.ClusterError(error.what, "lower finetune.cpus_per_seed or finetune.gpus_per_seed") from error


def _work(run: FinetuneRun, folder: Path) -> "RunResult":
    hide_unreserved_gpus()
    from adapt.finetune.seed_run import finetune_work

    with on_node(folder), heartbeat.at_work("fine-tuning", folder, run.config.resources.stall_s, patient=True):
        return finetune_work(run.config, run.pretrained, Path(run.task), run.seed, folder)


PREDICTIONS_FILE = "predictions.jsonl"
DEV_PREDICTIONS_FILE = "dev_predictions.jsonl"
"""File with one JSON object per example: id, label, predicted (class indices), probabilities, leaked."""
CURVE_FILE = "curve.json"
"""File with one JSON object per epoch: epoch, loss, dev (the score on the dev split)."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run: metrics, training curve and predictions."""

    metrics: dict[str, Any]
    curve: list[dict[str, Any]]
    predictions: dict[str, list[dict[str, Any]]]
    """Predictions on the splits dev and test, with one object per example."""

    def write(self, folder: Path) -> None:
        """Writes predictions and curve into the folder."""
        for name, file in (("test", PREDICTIONS_FILE), ("dev", DEV_PREDICTIONS_FILE)):
            lines = (json.dumps(line, ensure_ascii=False) for line in self.predictions[name])
            write_atomically(folder / file, "".join(f"{line}\n" for line in lines))
        write_atomically(folder / CURVE_FILE, json.dumps(self.curve))
