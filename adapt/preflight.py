"""What is checked of storage and weights before anything is started. The parts check the rest themselves."""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.console import log
from adapt.errors import ConfigError, StorageError
from adapt.model.locate import weight_files
from adapt.model.size import model_size, read_header
from adapt.runner.files import storage_errors
from adapt.runtime import address_of, check_address
from adapt.train.capacity.device import has_gpu
from adapt.train.capacity.fit import check_fits, size_of_training
from adapt.train.capacity.flops import mean_length
from adapt.train.capacity.probe import device_of_workers
from adapt.train.compiler import check_compiler
from adapt.train.schedule import check_warmup, length_of
from adapt.train.tracking.track import mlflow_folder


def check_writable(root: Path) -> None:
    """Tries the storage root.

    Raises:
        StorageError: it cannot be written or has no space.
    """
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()


def check_space(folder: Path, model: Path, keep_checkpoints: int) -> None:
    """Looks for room for the model and its checkpoints, before training starts.

    Args:
        folder: the training's, which may hold some of them from an earlier start.
        model: the folder of the model to start from.
        keep_checkpoints: how many are kept.

    Raises:
        StorageError: they would not fit (weights and two moments of AdamW a checkpoint, one of them on its way).
    """
    weights = sum(file.stat().st_size for file in weight_files(model))
    held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed, free = weights * (2 + 3 * (keep_checkpoints + 1)) - held, shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder} has {free / 1e9:.2f} GB free, and checkpoints and model take {needed / 1e9:.2f} GB",
            "free some space, point storage.root elsewhere, or lower training.keep_checkpoints",
        )


def check_weights(model: Path) -> None:
    """Reads the headers of a model's weights, which say how long the files are.

    Raises:
        ModelError: a file is cut short, or is none in safetensors.
    """
    for file in weight_files(model):
        if file.suffix == ".safetensors":
            read_header(file)


def check_compile(config: Config) -> None:
    """On this machine, looks for the compiler that training.compile needs. On a cluster, its workers do.

    Raises:
        ConfigError: there is none.
    """
    if config.training.compile and address_of(config.resources) is None:
        check_compiler(has_gpu() and config.resources.gpus_per_worker != 0)


def check_memory(config: Config, model: Path, corpus: Mapping[str, Any] | None = None, number: int = 1) -> None:
    """Compares the memory that a training needs with that of its devices. Needs a connection to Ray.

    Nothing is checked, and that is said, where the model's dimensions or the devices are not known.

    Args:
        config: the job's.
        model: folder of the model to start from.
        corpus: the prepared corpus's metrics, if it is: how long its documents are.
        number: of the training in a sequence of domains, which starts with this model; it may grow before each.

    Raises:
        ConfigError: the training cannot fit; says what would.
    """
    size, device = model_size(model), device_of_workers(config.resources)
    if size is None:
        log("memory is not checked: config.json does not name the model's dimensions in a known way")
    elif device is None:
        log("memory is not checked: the cluster has no free place for a worker yet (resources.device_memory_gib)")
    else:
        check_fits(config, size_of_training(config, size, number), device, mean_length(corpus) if corpus else None)


def check_training(config: Config) -> None:
    """Looks for settings that contradict each other, as far as they can be judged without the corpus.

    Raises:
        ConfigError: names the fields.
    """
    if not config.training.max_flops:  # its steps depend on the model
        check_warmup(config.training, length_of(config.training, sys.maxsize).steps)
    offload, stage = config.resources.offload, config.resources.zero_stage
    stages = {"none": (0, 1, 2, 3), "optimizer": (2, 3), "all": (3,)}[offload]
    if stage not in stages:
        raise ConfigError(
            f"resources.offload {offload} does not work with resources.zero_stage {stage}",
            f"use resources.zero_stage {' or '.join(map(str, stages))}, or resources.offload none",
        )


def check_shared(config: Config) -> None:
    """Refuses results where no folder is, and, on a cluster, where nobody finds them again.

    Raises:
        ConfigError: names the field.
        ClusterError: the address of the cluster has a form that Ray cannot join.
    """
    check_address(config.resources)
    root = config.storage.root
    if not root.strip() or "://" in root:
        what = f"storage.root {root} is a URL, but results need a folder" if root.strip() else "storage.root is empty"
        raise ConfigError(what, "name a folder, such as runs; for a bucket, name the folder where it is mounted")
    if address_of(config.resources) is not None:
        check_absolute(config)


def check_absolute(config: Config) -> None:
    """Refuses results in a folder that stands for another one on every node of a cluster.

    Raises:
        ConfigError: names the field.
    """
    folders = {"storage.root": Path(config.storage.root).expanduser()}
    if folder := mlflow_folder(config.tracking):
        folders["tracking.mlflow_uri"] = folder
    for field, folder in folders.items():
        if not folder.is_absolute():
            raise ConfigError(
                f"{field} is relative, but on a cluster a job runs in a throwaway copy of its working directory",
                f"give it an absolute path on a file system that all nodes share: --{field} /shared/{folder.name}",
            )
