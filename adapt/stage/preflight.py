"""Checks storage, weights and settings before a job starts its first stage.

Further checks are in the modules whose code depends on them.
"""

import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from adapt.config import Config, ResourcesConfig
from adapt.merge.compatibility import vocabulary_of
from adapt.model.architecture import (
    HEADS,
    PATTERNS,
    WHY,
    Way,
    check_architecture,
    check_detector,
    try_unknown,
    unequal_tables,
)
from adapt.model.locate import CONFIG, Pretrained, has_tokenizer, no_head, read_json, weight_files
from adapt.model.size import model_size, read_header, token_table
from adapt.model.start import Start
from adapt.objective.table import RTD, needs_decoder, objective_options, sees_only_earlier
from adapt.ray.runtime import address_of, check_address
from adapt.runner.bucket_errors import Address
from adapt.runner.files import storage_errors
from adapt.runner.mirror import mirror_at
from adapt.support.errors import ConfigError, ModelError, StorageError
from adapt.support.paths import user_path
from adapt.terminal.console import log
from adapt.train import metric_trackers, schedule
from adapt.train.capacity import flops, memory
from adapt.train.capacity.device import (
    check_compiler,
    check_precision_on_cpu,
    cpu_has_bf16,
    device_of_workers,
    has_gpu,
)


def check_writable(root: Path) -> None:
    """Checks that files can be written below the storage root, and to the bucket if the root is a bucket.

    Raises:
        ConfigError: the bucket needs a package that is not installed.
        StorageError: the folder or bucket cannot be written, the disk is full, or the store lacks conditional writes.
    """
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    if mirror := mirror_at(root):
        mirror.check_store()


def check_priced(resources: ResourcesConfig) -> None:
    """Checks that a price per device-hour is set if the budget is an amount of money."""
    budget, price = resources.budget, resources.price_per_device_hour
    if budget and budget.cost is not None and not price:
        raise ConfigError(
            "resources.budget has a cost, but the price of a device is not known",
            "set resources.price_per_device_hour, or give resources.budget as {device_hours: …}",
        )


def check_space(folder: Path, model: Path, keep_checkpoints: int, copies: int = 3) -> None:
    """Checks before training that the disk has enough space for the model and its checkpoints (`space_needed`)."""
    needed, free = sum(space_needed(folder, model, keep_checkpoints, copies)), shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder} has {free / 1e9:.2f} GB free, but the checkpoints and the model need {needed / 1e9:.2f} GB",
            "free some space, point storage.root elsewhere, or lower training.keep_checkpoints",
        )


def space_needed(folder: Path, model: Path, keep_checkpoints: int, copies: int = 3) -> tuple[int, int]:
    """Returns the disk space that a training run will use [bytes].

    The first number is for files that are kept, and the second for files that are deleted later. A checkpoint holds the
    weights and AdamW's two moments, all in fp32 like the model. During training, the disk also holds one more
    checkpoint (two if none is kept) and a copy of the weights.

    Args:
      folder: folder of the training stage, which may contain checkpoints of an interrupted run.
      model: folder of the initial model.
      keep_checkpoints: number of checkpoints that are kept.
      copies: number of values per weight in a checkpoint: the weight, AdamW's two moments, and the weight of an
        earlier step if the model of an earlier step may be exported.
    """
    weights = 4 * sum(
        math.prod(tensor["shape"])
        for file in weight_files(model)
        if file.suffix == ".safetensors"
        for tensor in read_header(file).values()
    )
    held = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    passing = 1 + copies * (1 if keep_checkpoints else 2)
    return max(weights * (1 + copies * keep_checkpoints) - held, 0), passing * weights


def check_precision(config: Config) -> None:
    """Checks that the devices support the configured precision. If no device is known yet, the workers check this."""
    precision, resources = config.training.precision, config.resources
    is_here = address_of(resources) is None
    if resources.gpus_per_worker and resources.gpus_per_worker > 0:
        return
    if resources.gpus_per_worker is None and (has_gpu() or not is_here):
        return
    check_precision_on_cpu(precision, not is_here or cpu_has_bf16())


def check_start(config: Config, start: Start) -> None:
    """Checks that the configured objective can train or measure a model.

    Raises:
        ModelError: the model, or the generator of replaced-token detection, cannot be used.
        ConfigError: an option of the objective does not fit the model.
    """
    if config.objective.kind != RTD:
        check_model(start, needs_decoder(config.objective), sees_only_earlier(config.objective))
        return
    check_weights(start.pretrained.model)
    check_detector(start.pretrained.model)
    check_generator(config, start.pretrained)


def way_of_documents(config: Config, start: Start) -> Way | None:
    """Returns the row layout for a model that does not accept packed documents (`adapt.model.architecture.Way`).

    Returns None if the model accepts packed documents, or if this is only known when the model is loaded.

    Raises:
        ModelError: the model cannot be trained.
    """
    model, trusts = start.pretrained.model, start.pretrained.trust_remote_code
    way = try_unknown(model, needs_decoder(config.objective), trusts, sees_only_earlier(config.objective))
    return None if way == "packed" else way


def check_generator(config: Config, pretrained: Pretrained) -> None:
    """Checks that a generator can draw tokens for a discriminator.

    Raises:
        ModelError: the generator predicts no masked tokens, or its vocabulary or embeddings differ from the
            discriminator's.
        ConfigError: the configured number of generator layers is larger than the discriminator's number of layers.
    """
    options, layers = objective_options(config), read_json(pretrained.model / CONFIG).get("num_hidden_layers")
    if pretrained.generator is None:
        if options.generator_layers and layers and options.generator_layers > layers:
            raise ConfigError(
                f"rtd.generator_layers is {options.generator_layers}, but the model has {layers} layers",
                f"set it to {layers} or less",
            )
        return
    generator = replace(pretrained, model=pretrained.generator, generator=None)
    generator = replace(generator, tokenizer=generator.model if has_tokenizer(generator.model) else generator.tokenizer)
    try:
        check_architecture(generator.model, causal=False)
        _check_model(generator.model, False, pretrained.trust_remote_code, True, False)
    except ModelError as error:
        fix = "name a masked language model with the vocabulary of model.path, or leave rtd.generator out to make one"
        raise ModelError(f"rtd.generator: {error.what}", fix) from error
    rows = [read_json(each.model / CONFIG).get("vocab_size") for each in (pretrained, generator)]
    ids = [vocabulary_of(each) for each in (pretrained, generator)]
    if rows[0] != rows[1] or ids[0] != ids[1]:
        differing = sum(ids[0].get(token) != ids[1].get(token) for token in ids[0].keys() | ids[1].keys())
        raise ModelError(
            f"rtd.generator: {generator.model} has another vocabulary than {pretrained.model}: vocab_size is {rows[1]}"
            f" and {rows[0]}, and {differing:,} tokens differ",
            "use the generator that was trained with this model, or leave rtd.generator out to make one",
        )
    if options.embeddings == "separate":
        return
    tables = [token_table(each.model) for each in (pretrained, generator)]
    if None in tables:
        return
    (shape, content), (other, other_content) = tables  # type: ignore[misc]
    if shape != other:
        raise unequal_tables(str(pretrained.generator), f"word_embeddings of shape {[*other]}, not {[*shape]}")
    if options.embeddings == "shared" and content != other_content:
        raise unequal_tables(str(pretrained.generator), "word_embeddings with other values than the model's")


def check_model(start: Start, causal: bool | None, only_earlier: bool = False) -> None:
    """Checks that a model can be loaded and trained.

    First reads the headers of the weights. Then builds the architecture without weights, and logs if the architecture
    does not accept packed documents. Architectures with known layers accept packed documents, so they are not built.

    Args:
        start: the model. A model that gets a new head may lack a head.
        causal: whether the model must predict next tokens; None to accept the objective that the model was made for.
        only_earlier: whether the objective makes an encoder's attention causal, so that tokens see only earlier tokens.

    Raises:
        ModelError: the model cannot be used. The message names what the model lacks.
    """
    pretrained = start.pretrained
    _check_model(pretrained.model, causal, pretrained.trust_remote_code, start.head is None, only_earlier)


@lru_cache  # avoids repeated checks, because all stages of a job check the same model
def _check_model(
    model: Path, causal: bool | None, trust_remote_code: bool, needs_head: bool, only_earlier: bool
) -> None:
    check_weights(model)
    kind = str(read_json(model / CONFIG).get("model_type"))
    way = try_unknown(model, causal, trust_remote_code, only_earlier)
    if needs_head and (missing := head_missing(model, trust_remote_code)):
        raise no_head(f"{model}", missing)
    if way in WHY:
        log(f"{kind} models take no packed documents: {WHY[way]}")


def head_missing(model: Path, trust_remote_code: bool) -> list[str]:
    """Returns names of the weights of an encoder's head if the encoder has no head, else an empty list.

    The architecture is built only for model types outside of HEADS and PATTERNS, because this needs torch.
    """
    kind = str(read_json(model / CONFIG).get("model_type"))
    if kind in HEADS:
        return [] if any(name.startswith(HEADS[kind]) for name in weight_names(model)) else [f"{HEADS[kind]}*"]
    if kind in PATTERNS:
        return []
    from adapt.model.rebuilt_model import missing_head

    return missing_head(model, trust_remote_code)


def check_weights(model: Path) -> None:
    """Reads the headers of a model's weights, and checks that the files are complete.

    Raises:
        ModelError: a file is truncated, or is not in safetensors format.
    """
    for file in weight_files(model):
        if file.suffix == ".safetensors":
            read_header(file)


def weight_names(model: Path) -> list[str]:
    """Returns the names of all tensors in a model's weights, from their headers."""
    return [name for file in weight_files(model) if file.suffix == ".safetensors" for name in read_header(file)]


def check_compile(config: Config) -> None:
    """Checks that this machine has the compiler that training.compile needs. On a cluster, the workers check this."""
    if config.training.compile and address_of(config.resources) is None:
        check_compiler(has_gpu() and config.resources.gpus_per_worker != 0)


def check_memory(
    config: Config,
    model: Path,
    corpus: Mapping[str, Any] | None = None,
    number: int = 1,
    generator: Path | None = None,
) -> None:
    """Checks that a training run fits in the memory of its devices. Needs a connection to Ray.

    If the model's dimensions or the devices are not known, the function only logs that it checks nothing.

    Args:
      config: configuration of the job.
      model: folder of the initial model.
      corpus: metrics of the prepared corpus, for the length of its documents. None if the corpus is not prepared.
      number: number of this training run, from 1, in a sequence of training runs that starts from this model. The
        model may grow before each training run.
      generator: folder of the generator of replaced-token detection, if there is one.

    Raises:
      ConfigError: the training run does not fit. The message suggests settings with which it fits.
    """
    size, device = model_size(model), device_of_workers(config.resources)
    if size is None:
        log("memory is not checked: config.json does not contain the model's dimensions under known names")
    elif device is None:
        log(
            "memory is not checked: no node of the cluster has the resources for a worker yet; to check anyway, set"
            " resources.device_memory_gib"
        )
    else:
        trained = memory.size_of_training(config, size, number, generator)
        memory.check_fits(config, trained, device, flops.mean_length(corpus) if corpus else None)


def check_training(config: Config) -> None:
    """Checks that settings do not contradict each other, as far as this is possible without the corpus."""
    if not config.training.max_flops:  # with max_flops, the number of steps depends on the model
        schedule.check_warmup(config.training, schedule.length_of(config.training, sys.maxsize).steps)
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
    """Checks that results go to a folder or an S3 bucket. On a cluster, they must go to a folder with an absolute path.

    Raises:
      ConfigError: the setting cannot work. The message names the field.
      ClusterError: the cluster's address has a form that Ray cannot join.
    """
    check_address(config.resources)
    root = config.storage.root
    if not root.strip():
        raise ConfigError("storage.root is empty", "name a folder, such as runs, or a bucket: s3://BUCKET/PREFIX")
    if "://" in root:
        Address.of(root)
    if address_of(config.resources) is not None or ("://" in root and _has_other_nodes()):
        check_absolute(config)


def _has_other_nodes() -> bool:
    """Returns whether this process is connected to a cluster of several nodes, for example by the user's program."""
    ray: Any = sys.modules.get("ray")
    is_connected = ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized()
    return is_connected and sum(node["Alive"] for node in ray.nodes()) > 1


_DISKS = {"storage.cache": "a disk of each node"}
"""Fields whose folder is separate on each node, with a description of where the folder is."""


def check_absolute(config: Config) -> None:
    """Checks that result folders have absolute paths, because a relative path names a different folder on each node."""
    storage = config.storage
    name = "cache" if "://" in storage.root else "root"
    folders = {f"storage.{name}": user_path(getattr(storage, name))}
    if folder := metric_trackers.mlflow_folder(config.tracking):
        folders["tracking.mlflow_uri"] = folder
    for field, folder in folders.items():
        if not folder.is_absolute():
            raise ConfigError(
                f"{field} is a relative path, but on a cluster a job runs in a temporary copy of its working directory",
                f"give it an absolute path on {_DISKS.get(field, 'a file system that all nodes share')}:"
                f" --{field} /{'scratch' if field in _DISKS else 'shared'}/{folder.name}",
            )
