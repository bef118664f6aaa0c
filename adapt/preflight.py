"""What is checked of storage and weights before anything is started. The parts check the rest themselves."""

import json
import shutil
import tempfile
from pathlib import Path

from adapt.chain.files import storage_errors
from adapt.config import Config
from adapt.errors import ConfigError, ModelError, StorageError
from adapt.model.locate import weight_files
from adapt.runtime import address_of
from adapt.train.track import mlflow_folder


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
        if file.suffix == ".safetensors" and not _is_whole(file):
            raise ModelError(
                f"{file} cannot be read: it is cut short, or no safetensors file", "copy or download the model again"
            )


def _is_whole(file: Path) -> bool:
    """Eight bytes of length, that much JSON with the places of the tensors, the tensors."""
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        try:
            header = json.loads(content.read(length)) if length < size else {}
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return False
    return bool(ends) and 8 + length + max(ends) == size


def check_shared(config: Config) -> None:
    """On a cluster, refuses results in a folder that nobody finds again.

    Raises:
        ConfigError: names the field.
    """
    if address_of(config.resources) is None:
        return
    folders = {"storage.root": Path(config.storage.root).expanduser()}
    if folder := mlflow_folder(config.tracking):
        folders["tracking.mlflow_uri"] = folder
    for field, folder in folders.items():
        if not folder.is_absolute():
            raise ConfigError(
                f"{field} is relative, but on a cluster a job runs in a throwaway copy of its working directory",
                f"give it an absolute path on a file system that all nodes share: --{field} /shared/{folder.name}",
            )
