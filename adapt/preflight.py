"""What is checked of the storage before anything is started. The parts check the rest themselves."""

import shutil
import tempfile
from pathlib import Path

from adapt.chain.files import storage_errors
from adapt.config import Config
from adapt.errors import ConfigError, StorageError
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


def check_space(root: Path, model: Path, keep_checkpoints: int) -> None:
    """Looks for room for the model and its checkpoints, before training starts.

    Raises:
        StorageError: they would not fit (weights and two moments of AdamW a checkpoint, one of them on its way).
    """
    weights = sum(file.stat().st_size for file in weight_files(model))
    needed, free = weights * (2 + 3 * (keep_checkpoints + 1)), shutil.disk_usage(root).free
    if free < needed:
        raise StorageError(
            f"{root} has {free / 1e9:.2f} GB free, and checkpoints and model take {needed / 1e9:.2f} GB",
            "free some space, point storage.root elsewhere, or lower training.keep_checkpoints",
        )


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
