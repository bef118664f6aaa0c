"""What is checked of storage and weights before anything is started. The parts check the rest themselves."""

import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.model.architecture import HEADS, PATTERNS
from adapt.model.locate import CONFIG, no_head, read_json, weight_files
from adapt.model.size import model_size, read_header
from adapt.model.start import Start
from adapt.ray.runtime import address_of, check_address
from adapt.runner.files import storage_errors
from adapt.support.errors import ConfigError, StorageError
from adapt.terminal.console import log
from adapt.train.capacity.device import check_compiler, cpu_has_bf16, device_of_workers, has_gpu, lacks_gpu
from adapt.train.capacity.flops import mean_length
from adapt.train.capacity.memory import check_fits, size_of_training
from adapt.train.metric_trackers import mlflow_folder
from adapt.train.schedule import check_warmup, length_of


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
        StorageError: they would not fit.
    """
    needed, free = sum(space_needed(folder, model, keep_checkpoints)), shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder} has {free / 1e9:.2f} GB free, and checkpoints and model take {needed / 1e9:.2f} GB",
            "free some space, point storage.root elsewhere, or lower training.keep_checkpoints",
        )


def space_needed(folder: Path, model: Path, keep_checkpoints: int) -> tuple[int, int]:
    """What a training will write [bytes]: what stays, and what goes on its way.

    A checkpoint holds the weights and AdamW's two moments, all in fp32, as is the model. While it trains, there are one
    checkpoint more and a copy of the weights, also where none is kept.

    Args:
        folder: the training's, which may hold some of it from an earlier start.
        model: the folder of the model to start from.
        keep_checkpoints: how many are kept.
    """
    weights = 4 * sum(
        math.prod(tensor["shape"])
        for file in weight_files(model)
        if file.suffix == ".safetensors"
        for tensor in read_header(file).values()
    )
    held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return max(weights * (1 + 3 * keep_checkpoints) - held, 0), (4 if keep_checkpoints else 7) * weights


def check_precision(config: Config) -> None:
    """Refuses an arithmetic that the devices surely do not have. Where they are not known yet, their workers look.

    Raises:
        ConfigError: names the field.
    """
    precision, resources = config.training.precision, config.resources
    is_here = address_of(resources) is None
    if resources.gpus_per_worker and resources.gpus_per_worker > 0:
        return
    if resources.gpus_per_worker is None and not (is_here and lacks_gpu()):
        return
    if precision == "fp16":
        raise ConfigError("training.precision fp16 is for GPUs, and this run has none", "use bf16, fp32, or auto")
    if precision == "bf16" and is_here and not cpu_has_bf16():
        raise ConfigError("training.precision bf16: this machine's CPU has no bf16 arithmetic", "use fp32, or auto")


def check_model(start: Start, causal: bool | None) -> None:
    """Refuses a model that could not be loaded and packed, by the headers of its weights, and by a try.

    The try is one of its architecture, without its weights. Architectures whose layers are known here can be packed.

    Args:
        start: the model. One that gets a new head needs none of its own.
        causal: whether it is to predict next tokens; None for what it was made for.

    Raises:
        ModelError: says what it lacks.
    """
    pretrained = start.pretrained
    _check_model(pretrained.model, causal, pretrained.trust_remote_code, start.head is None)


@lru_cache  # the stages of a job ask for the same one
def _check_model(model: Path, causal: bool | None, trust_remote_code: bool, needs_head: bool) -> None:
    check_weights(model)
    kind = str(read_json(model / CONFIG).get("model_type"))
    head = HEADS.get(kind, "")
    if needs_head and not any(name.startswith(head) for name in weight_names(model)):
        raise no_head(f"{model}", [f"{head}*"])
    if kind not in PATTERNS:
        from adapt.model.load import check_loads

        check_loads(model, causal, trust_remote_code)


def check_weights(model: Path) -> None:
    """Reads the headers of a model's weights, which say how long the files are.

    Raises:
        ModelError: a file is cut short, or is none in safetensors.
    """
    for file in weight_files(model):
        if file.suffix == ".safetensors":
            read_header(file)


def weight_names(model: Path) -> list[str]:
    """Returns the names of all tensors in a model's weights, from their headers."""
    return [name for file in weight_files(model) if file.suffix == ".safetensors" for name in read_header(file)]


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
    if config.training.decay != "linear" and config.training.schedule != "wsd":
        raise ConfigError(
            f"training.decay {config.training.decay} is for the schedule wsd, but training.schedule is"
            f" {config.training.schedule}",
            "set training.schedule to wsd, or leave training.decay out",
        )
    if config.model.head_warmup_steps and config.model.head != "new":
        raise ConfigError(
            "model.head_warmup_steps trains a new head first, but model.head is not new",
            "set model.head to new, or leave model.head_warmup_steps out",
        )
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
