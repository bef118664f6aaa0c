"""Finds the complete checkpoints of a run by their files, and removes incomplete, forged and old ones.

Ray Train also keeps a list of checkpoints. It overwrites this list seconds after it has stored a checkpoint, so the
list is out of date or truncated if a process is killed before or during this. Therefore, each rank seals its share
with a list of its files (`adapt.train.checkpoints.seal`). A checkpoint is whole if the seals of all ranks exist and
every file has the listed size.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path

from adapt.runner.secret import VARIABLE
from adapt.support.errors import StorageError
from adapt.terminal.console import log
from adapt.train.checkpoints.seal import Seal, Sealing, forgery_in, seal_files

SNAPSHOT = "checkpoint_manager_snapshot.json"
"""File in which Ray Train lists a run's checkpoints."""
STATE_FILE = "state.json"
"""File in a checkpoint with the number of workers, the ZeRO stage and the progress."""
_NAME = "step-{:08d}"


def folder_name(step: int) -> str:
    """Returns the name of the checkpoint of a step. Sorted names are in the order of steps."""
    return _NAME.format(step)


def step_of(checkpoint: Path) -> int:
    """Reads the step of a checkpoint from its name."""
    return int(checkpoint.name.removeprefix("step-"))


def is_whole(checkpoint: Path) -> bool:
    """Returns whether the files of all ranks exist with their full size."""
    seals = seal_files(checkpoint)
    try:
        world_sizes = {int(seal.stem.rsplit("-", 1)[1]) for seal in seals}
        if len(world_sizes) != 1 or len(seals) != world_sizes.pop():
            return False
        return all(
            (checkpoint / name).stat().st_size == size for seal in seals for name, size in Seal.read(seal).sizes.items()
        )
    except (OSError, ValueError):
        return False


def bytes_in(checkpoint: Path) -> int:
    """Returns the size of the files of a checkpoint that are stored so far [bytes]."""
    size = 0
    for file in checkpoint.rglob("*"):
        with suppress(OSError):
            size += file.stat().st_size
    return size


def checkpoints(run_folder: Path) -> list[Path]:
    """Lists the checkpoint folders of a run, whole or not, oldest first."""
    return sorted(run_folder.glob("step-*"))


def newest_whole(run_folder: Path) -> Path | None:
    """Returns the newest whole checkpoint of a run, from which the run resumes. Returns None if there is none."""
    return next((checkpoint for checkpoint in reversed(checkpoints(run_folder)) if is_whole(checkpoint)), None)


def remove_torn(run_folder: Path) -> None:
    """Removes incomplete checkpoints.

    Otherwise, their files could end up in a later checkpoint of the same step.
    """
    for checkpoint in checkpoints(run_folder):
        if not is_whole(checkpoint):
            log(f"removed the checkpoint {checkpoint}, which is not whole: files are missing or have other sizes")
            shutil.rmtree(checkpoint)


def remove_forged(run_folder: Path, sealing: Sealing) -> None:
    """Removes whole checkpoints that the run did not write itself, and logs each of them.

    Raises:
        StorageError: this run wrote none of the checkpoints, for example because the key is lost. No checkpoint is
            removed then.
    """
    found = {checkpoint: forgery_in(checkpoint, sealing) for checkpoint in checkpoints(run_folder)}
    forged = {checkpoint: why for checkpoint, why in found.items() if why}
    if forged and len(forged) == len(found):
        checkpoint, why = next(iter(reversed(forged.items())))
        raise StorageError(
            f"the checkpoint {checkpoint} is not one that this job wrote: {why}. It is not loaded, as a checkpoint of "
            "somebody else may hold anything",
            f"run as the user who wrote it, with the same {VARIABLE} or the same .key-UID file in the storage root;"
            f" or delete {run_folder} to begin again",
        )
    for checkpoint, why in forged.items():
        log(f"the checkpoint {checkpoint} is not one that this job wrote ({why}); it was removed")
        shutil.rmtree(checkpoint)


def mend_run(run_folder: Path, sealing: Sealing) -> None:
    """Prepares a run's folder for a start. Removes incomplete and forged checkpoints, and an outdated list.

    Ray Train would fail if its list named checkpoints that are missing.

    Raises:
        StorageError: as in `remove_forged`.
    """
    remove_torn(run_folder)
    remove_forged(run_folder, sealing)
    snapshot = run_folder / SNAPSHOT
    try:
        listed = [result["checkpoint_dir_name"] for result in json.loads(snapshot.read_text())["checkpoint_results"]]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        snapshot.unlink()
        return
    if not all((run_folder / name).is_dir() for name in listed):
        snapshot.unlink()


def prune(run_folder: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints.

    Ray Train itself does not remove checkpoints that are missing from its list.
    """
    for checkpoint in checkpoints(run_folder)[:-keep]:
        shutil.rmtree(checkpoint)
