"""Manages the files of checkpoints: signs and verifies files, finds whole checkpoints, and removes other checkpoints.

A seal is a list of files with sizes and digests, signed with the user's key. Each rank seals its share. A checkpoint is
whole if the seals of all ranks exist and every file has the listed size. A whole checkpoint is loaded only if, in
addition, the seals are signed by this user's key for this run and step, there are no other files, and every file has
the listed digest. Files of other users are therefore never read, and a flipped bit is detected. Unsigned seals, as
earlier versions wrote them, count as forged.

Ray Train also keeps a list of checkpoints. It overwrites this list seconds after it has stored a checkpoint, so the
list is outdated or truncated if Ray Train is killed before or during this write. Therefore, the seals decide which
checkpoints are whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adapt.method.base import Method
from adapt.method.table import METHODS
from adapt.runner.digest import changed_files, named_faults, sha256_of_all
from adapt.runner.files import write_atomically
from adapt.runner.record import Record, load_record
from adapt.runner.secret import VARIABLE, Secret, secret_of
from adapt.runner.stage import canonical
from adapt.support.errors import ModelError, StorageError
from adapt.terminal.console import log

if TYPE_CHECKING:
    from torch import Tensor


def sealed_run(folder: Path, name: str) -> str:
    """Returns the identity of a run: the digits of the stage's key from the name of `folder`, and the run's name."""
    return f"{folder.name.rsplit('-', 1)[-1]}/{name}"


@dataclass(frozen=True)
class Sealing:
    """Signs the checkpoints of one run, and verifies their signatures."""

    secret: Secret
    run: str
    """Identity of the run. Checkpoints that were copied from another run are refused."""

    def text(self, seal: str, checkpoint: str, files: Mapping[str, tuple[int, str]]) -> str:
        """Returns the text that is signed.

        Args:
            seal: name of the seal's file, which contains the rank and the number of ranks.
            checkpoint: name of the checkpoint's folder.
            files: size [bytes] and SHA-256 of each file, keyed by name.
        """
        return canonical({"run": self.run, "checkpoint": checkpoint, "seal": seal, "files": files})


@dataclass(frozen=True)
class Seal:
    """List of the files in a rank's share of a checkpoint."""

    files: Mapping[str, tuple[int, str]]
    """Size [bytes] and SHA-256 of each file, keyed by its path in the checkpoint. The SHA-256 is empty in unsigned
    seals."""
    signature: str
    """Signature of the list of files. Empty in unsigned seals."""

    @classmethod
    def read(cls, file: Path) -> Seal:
        """Reads a seal.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a seal.
        """
        try:
            content = json.loads(file.read_text())
            if "files" not in content:  # an unsigned seal
                content = {"files": {name: (size, "") for name, size in content.items()}, "signature": ""}
            files = {str(name): (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
            return cls(files, str(content["signature"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{file} is not a seal") from error


def seal_files(checkpoint: Path) -> list[Path]:
    """Lists the seals of a checkpoint."""
    return sorted(checkpoint.glob("seal-*-of-*.json"))


def write_seal(folder: Path, rank: int, world: int, checkpoint: str, sealing: Sealing) -> None:
    """Seals a rank's share of a checkpoint. The seal must be the last file that the rank writes.

    Args:
        folder: folder with the rank's files.
        rank: rank of this process.
        world: number of ranks.
        checkpoint: name of the folder in which the shares of all ranks will be stored.
        sealing: signs the seal for the run.
    """
    seals = seal_files(folder)
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file not in seals]
    _sign(folder, f"seal-{rank}-of-{world}.json", names, checkpoint, sealing)


def reseal(folder: Path, checkpoint: str, sealing: Sealing, changed: str = "") -> None:
    """Signs a whole checkpoint, or its copy, again: for another run, or after one file was changed.

    The digests of all other files are taken from the old seals.

    Args:
        folder: the checkpoint or its copy.
        checkpoint: name of the folder in which the checkpoint will be stored.
        sealing: signs the seals for the run to which the checkpoint will belong.
        changed: name of the changed file. Empty if no file was changed.
    """
    for file in seal_files(folder):
        digests = {name: digest for name, (_, digest) in Seal.read(file).files.items()}
        known = {name: digest for name, digest in digests.items() if name != changed}
        _sign(folder, file.name, list(digests), checkpoint, sealing, known)


def _sign(
    folder: Path, seal: str, names: list[str], checkpoint: str, sealing: Sealing, known: Mapping[str, str] | None = None
) -> None:
    """Writes the seal of some files. Files with a digest in `known` are not read."""
    digests = {**(known or {}), **sha256_of_all(folder, sorted(set(names) - set(known or {})))}
    files = {name: ((folder / name).stat().st_size, digests[name]) for name in sorted(names)}
    signature = sealing.secret.sign(sealing.text(seal, checkpoint, files))
    write_atomically(folder / seal, json.dumps({"files": files, "signature": signature}))


def forgery_in(checkpoint: Path, sealing: Sealing) -> str | None:
    """Returns why a whole checkpoint cannot come from this user's job for this run. Returns None if it can.

    The content of files is not read: see `content_fault`.
    """
    listed = set()
    for file in seal_files(checkpoint):
        seal = Seal.read(file)
        listed |= {file.name, *seal.files}
        if not sealing.secret.has_signed(sealing.text(file.name, checkpoint.name, seal.files), seal.signature):
            return f"{file.name} is not signed by this user's key for this run and step"
    for file in checkpoint.rglob("*"):
        name = str(file.relative_to(checkpoint))
        if file.is_symlink():
            return f"{name} is a link"
        if name not in listed and not file.is_dir() and not name.startswith("."):
            return f"{name} is not listed in the checkpoint's seal-*.json"
    return None


def digests_of(checkpoint: Path) -> dict[str, str]:
    """Reads the SHA-256 of all files of a checkpoint from its seals. Unsigned seals have no digests."""
    seals = (Seal.read(file) for file in seal_files(checkpoint))
    return {name: digest for seal in seals for name, (_, digest) in seal.files.items() if digest}


def content_fault(checkpoint: Path, digests: Mapping[str, str]) -> str | None:
    """Describes the files of a checkpoint whose content does not match `digests`. Returns None if all files match."""
    return named_faults(changed_files(checkpoint, digests)) or None


SNAPSHOT = "checkpoint_manager_snapshot.json"
"""File in which Ray Train lists a run's checkpoints."""
STATE_FILE = "state.json"
"""File in a checkpoint with the number of workers, the ZeRO stage and the progress."""
_NAME = "step-{:08d}"


def folder_name(step: int) -> str:
    """Returns the name of the checkpoint of a step. Sorted names are in the order of steps."""
    return _NAME.format(step)


def step_of(checkpoint: Path) -> int:
    """Returns the step of a checkpoint, from the name of its folder."""
    return int(checkpoint.name.removeprefix("step-"))


def is_whole(checkpoint: Path) -> bool:
    """Returns whether a checkpoint is whole: the files of all ranks exist with their full size."""
    seals = seal_files(checkpoint)
    try:
        world_sizes = {int(seal.stem.rsplit("-", 1)[1]) for seal in seals}
        if len(world_sizes) != 1 or len(seals) != world_sizes.pop():
            return False
        return all(
            (checkpoint / name).stat().st_size == size
            for seal in seals
            for name, (size, _) in Seal.read(seal).files.items()
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
    """Returns the newest whole checkpoint of a run, or None. The run resumes from this checkpoint."""
    return next((checkpoint for checkpoint in reversed(checkpoints(run_folder)) if is_whole(checkpoint)), None)


def remove_torn(run_folder: Path) -> None:
    """Removes incomplete checkpoints.

    Otherwise, their files could end up in a later checkpoint of the same step.
    """
    for checkpoint in checkpoints(run_folder):
        if not is_whole(checkpoint):
            log(f"removed the incomplete checkpoint {checkpoint}: files are missing or have the wrong size")
            shutil.rmtree(checkpoint)


_SAME_KEY = (
    f"run as the user who wrote it, with the same {VARIABLE} or the same key file (.key-UID in the storage root; for a"
    " bucket, ~/.config/dontstop/bucket-key)"
)


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
            f"the checkpoint {checkpoint} is not one that this job wrote: {why}. It is not loaded, because a "
            "checkpoint that somebody else wrote may contain anything",
            f"{_SAME_KEY}; or delete {run_folder} to begin again",
        )
    for checkpoint, why in forged.items():
        log(f"the checkpoint {checkpoint} is not one that this job wrote ({why}); it was removed")
        shutil.rmtree(checkpoint)


def mend_run(run_folder: Path, sealing: Sealing) -> None:
    """Prepares a run's folder for a start: removes incomplete and forged checkpoints, and Ray Train's outdated list.

    Ray Train would fail if this list named checkpoints that are missing.

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
    """Removes all checkpoints except the newest `keep` checkpoints.

    Ray Train itself does not remove checkpoints that are missing from its list.
    """
    for checkpoint in checkpoints(run_folder)[:-keep]:
        shutil.rmtree(checkpoint)


WEIGHTS_FILE = "state/mp_rank_00_model_states.pt"
"""File in which DeepSpeed stores the weights. It does not exist at ZeRO stage 3, because each rank stores a part."""
FIX = "name exported models, or checkpoints of a finished training run with method.kind plain at ZeRO stage 0, 1 or 2"


@dataclass(frozen=True)
class CheckpointWeights:
    """The weights of a checkpoint, keyed by parameter name."""

    _tensors: Mapping[str, Tensor]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor, keyed by parameter name."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        """Returns one tensor. It is memory-mapped, so that values are read from disk on use."""
        return self._tensors[name]


def is_checkpoint(folder: Path) -> bool:
    """Returns whether a folder contains a checkpoint rather than an exported model."""
    return (folder / STATE_FILE).is_file() and not (folder / "config.json").exists()


def training_of(folder: Path) -> Record | None:
    """Loads the record of the training run that wrote a checkpoint.

    Returns None if the run is not finished, or if the checkpoint is outside of the run's folder.
    """
    return load_record(folder.resolve().parents[2])


def checkpoint_files(folder: Path) -> list[Path]:
    """Returns the files that determine the weights of a checkpoint: its state and DeepSpeed's file of weights.

    Raises:
        ModelError: the checkpoint is incomplete, its weights are divided over ranks, its training run is not finished,
            or the run used a method that converts the weights to a model only at the end.
    """
    if not is_whole(folder):
        raise ModelError(f"the checkpoint {folder} is incomplete", "name the checkpoint of another step")
    stage = json.loads((folder / STATE_FILE).read_text(encoding="utf-8")).get("zero_stage")
    if stage == 3 or not (folder / WEIGHTS_FILE).is_file():
        raise ModelError(f"the checkpoint {folder} has its weights divided over ranks (ZeRO stage {stage})", FIX)
    record = training_of(folder)
    if record is None:
        raise ModelError(f"the checkpoint {folder} belongs to no finished training run", FIX)
    method = METHODS.load(record.what["method"]["kind"])
    if method.merge is not Method.merge:
        raise ModelError(
            f"the checkpoint {folder} is of method {method.kind}, whose weights become a model only at the end of"
            " training",
            FIX,
        )
    return [folder / STATE_FILE, folder / WEIGHTS_FILE]


@contextmanager
def checkpoint_weights(folder: Path) -> Iterator[CheckpointWeights]:
    """Opens the weights of a checkpoint.

    Raises:
        ModelError: as in `checkpoint_files`, or the training run did not write the checkpoint with this user's key, or
            a file is damaged or has changed since it was written.
    """
    state, file = checkpoint_files(folder)
    folder = folder.resolve()
    run, training = folder.parent, folder.parents[2]
    if why := forgery_in(folder, Sealing(secret_of(training.parents[1]), sealed_run(training, run.name))):
        raise ModelError(
            f"the checkpoint {folder} is not one that its training run wrote: {why}",
            f"{_SAME_KEY}; or name exported models",
        )
    sealed = digests_of(folder)
    read = {name: sealed[name] for name in (state.name, WEIGHTS_FILE) if name in sealed}
    if fault := content_fault(folder, read):
        raise ModelError(f"the checkpoint {folder} is damaged: {fault}", "name the checkpoint of another step")
    yield weights_in_file(file)


def weights_in_file(file: Path) -> CheckpointWeights:
    """Opens the weights in one of DeepSpeed's files. Only tensors and plain values are loaded, so no code can run.

    Raises:
        ModelError: the file cannot be read.
    """
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises different kinds of exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{file} cannot be read: {reason}", FIX) from error
    return CheckpointWeights({name: value for name, value in content["module"].items() if torch.is_tensor(value)})
