"""Saves and loads resumable checkpoints. Each rank writes its share to local disk, and Ray Train uploads it.

Checkpoints are stored in the folder of the stage. If the storage root is a bucket, this is the stage's folder on the
driver's node.
"""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointUploadMode

from adapt.method.base import Method
from adapt.method.collectives import among_hosts
from adapt.ray.node_files import at_home, fetch_part, send_now, storing
from adapt.support.errors import CheckpointError, StorageError
from adapt.train.checkpoints.stored_checkpoints import (
    Sealing,
    bytes_in,
    content_fault,
    digests_of,
    folder_name,
    forgery_in,
    is_whole,
    newest_whole,
    remove_torn,
    write_seal,
)
from adapt.train.points import Points
from adapt.train.training_run import Progress

if TYPE_CHECKING:
    from adapt.train.engine import Engine  # imported for types only, because this module loads DeepSpeed

R = TypeVar("R")
METHOD_FILE = "method.pt"
"""File in a checkpoint with the method's state."""
_ARRIVAL_S, _QUIET_S = 300.0, 15.0
"""Maximum time that a failed rank waits until its last checkpoint is stored [s]. The rank gives up earlier if no part
of the checkpoint arrives for `_QUIET_S`, because a lost rank uploads nothing. A failed upload ends the run by
itself."""
_NO_SPACE = 2**20
"""Free space below which a disk counts as full [bytes]. It is above 0, because a file that did not fit leaves some
space."""


@dataclass(frozen=True)
class Checkpoints:
    """Saves and loads the checkpoints of one run.

    Args:
        engine: holds the model and the optimizer, which are saved.
        method: method of the training run. Its state, if it has one, is saved.
        run_folder: folder of the Ray Train run, in which checkpoints are stored.
        sealing: signs checkpoints, and verifies them before they are loaded.
        branches: folder on the same storage for the state after `branch_step`. This state is never pruned.
        branch_step: step after which a longer run can continue (see `adapt.train.checkpoints.branch`).
        points: measurements of the model between steps. A checkpoint contains the weights that `points` keeps. None if
            nothing is measured.
    """

    engine: "Engine"
    method: Method
    run_folder: Path
    sealing: Sealing
    branches: Path | None = None
    branch_step: int | None = None
    points: Points | None = None
    _sent: list[Path] = field(default_factory=list)
    """Folders in which Ray Train stores the saved checkpoints, newest last."""

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Delays an error raised in the block until the last checkpoint is stored.

        Otherwise, the error would end the ranks before they have uploaded the checkpoint. If a rank is lost, so that no
        more of the checkpoint arrives, the ranks do not wait: they start again from the last complete checkpoint.
        """
        try:
            yield
        except Exception:
            end, size, quiet = time.monotonic() + _ARRIVAL_S, -1, 0.0
            while self._sent and not self._at_home(is_whole, self._sent[-1]) and time.monotonic() < end:
                if (arrived := self._at_home(bytes_in, self._sent[-1])) != size:
                    size, quiet = arrived, time.monotonic() + _QUIET_S
                elif time.monotonic() >= quiet:
                    break
                time.sleep(0.1)
            raise

    def save(self, progress: Progress) -> None:
        """Saves the state of all ranks to local disk. Ray Train then uploads it in the background.

        Raises:
            StorageError: the local disk is full.
        """
        with _local_space():
            folder = Path(tempfile.mkdtemp(prefix=self._prefix))
            self.engine.save(folder, asdict(progress))
            if dist.get_rank() == 0 and (state := self.method.state()):
                torch.save(state, folder / METHOD_FILE)
            if self.points:
                self.points.save(folder)
            write_seal(folder, dist.get_rank(), dist.get_world_size(), folder_name(progress.step), self.sealing)
        # If a rank has died, the other ranks fail here. Inside Ray Train, they would wait for this rank.
        dist.barrier(group=among_hosts())
        if self.branches and progress.step == self.branch_step:
            self._keep(folder, self.branches / folder_name(progress.step))
        ray.train.report(
            {"step": progress.step},
            checkpoint=Checkpoint.from_directory(folder),
            checkpoint_dir_name=folder_name(progress.step),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=True,
            checkpoint_upload_fn=storing(self.run_folder),
        )
        self._sent.append(self.run_folder / folder_name(progress.step))

    def load(self) -> Progress:
        """Restores the newest complete checkpoint, if any. The number of ranks or the ZeRO stage may have changed.

        Raises:
            CheckpointError: the files of the checkpoint were not written by this run. The checkpoint was removed.
            TrainingError: the checkpoint was written with other resources and cannot be converted.
        """
        for leftover in Path(tempfile.gettempdir()).glob(f"{self._prefix}*"):  # files that killed ranks left behind
            shutil.rmtree(leftover, ignore_errors=True)
        choice: list[Any] = [None, None, {}]  # rank 0 chooses, because nodes may see different states of the storage
        if dist.get_rank() == 0:
            choice = self._at_home(_newest, self.run_folder, self.sealing)
        dist.broadcast_object_list(choice)
        checkpoint, forgery, digests = choice
        if checkpoint is None:
            return Progress()
        fetch_part(checkpoint)
        self._check(checkpoint, forgery, digests)
        progress = Progress(**self.engine.load(checkpoint))
        if (file := checkpoint / METHOD_FILE).exists():
            self.method.load_state(torch.load(file, map_location=self.engine.device, weights_only=True))
        if self.points:
            self.points.resume(progress, checkpoint)
        return progress

    def _check(self, checkpoint: Path, forgery: str | None, digests: dict[str, str]) -> None:
        """Refuses a checkpoint that has changed since it was sealed. Each rank reads some of the files.

        Raises:
            CheckpointError: the checkpoint has changed. All ranks raise the error.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        own = {name: digests[name] for name in sorted(digests)[rank::world]}
        faults: list[str | None] = [None] * world
        dist.all_gather_object(faults, forgery or content_fault(checkpoint, own))
        if fault := next(filter(None, faults), None):
            if rank == 0:
                self._at_home(shutil.rmtree, checkpoint)
            raise CheckpointError(
                f"the checkpoint {checkpoint} has changed since this job wrote it ({fault}); it was removed",
                "run the same command again: it continues from the previous checkpoint",
            )

    def _at_home(self, function: Callable[..., R], *arguments: Any) -> R:
        return at_home(self.run_folder, function, *arguments)

    def _keep(self, folder: Path, target: Path) -> None:
        """Copies the shares of all ranks to `target`.

        The copy is written before the checkpoint of the step is stored, because a run that resumes from that checkpoint
        would never write the copy.
        """
        if dist.get_rank() == 0:
            self._at_home(_emptied, target)  # an existing folder comes from crashed ranks or is incomplete
        dist.barrier()
        shutil.copytree(folder, target, dirs_exist_ok=True)
        send_now(self.run_folder)
        dist.barrier()

    @property
    def _prefix(self) -> str:
        """Prefix of the names of this run's temporary folders. It depends on the storage root."""
        return f"checkpoint-{hashlib.sha256(str(self.run_folder).encode()).hexdigest()[:12]}-"


def _newest(run_folder: Path, sealing: Sealing) -> list[Any]:
    """Returns the newest complete checkpoint, why it cannot come from this run (None if it can), and its digests."""
    remove_torn(run_folder)
    newest = newest_whole(run_folder)
    return [newest, forgery_in(newest, sealing), digests_of(newest)] if newest else [None, None, {}]


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


@contextmanager
def _local_space() -> Iterator[None]:
    """Raises StorageError if a write failed because the local disk is full. Torch's error does not name this cause."""
    local = tempfile.gettempdir()
    try:
        yield
    except (OSError, RuntimeError) as error:
        if shutil.disk_usage(local).free >= _NO_SPACE:
            raise
        raise StorageError(
            f"no space left for a checkpoint in {local}",
            "free some space there, or set TMPDIR to a larger folder, then run the same command again",
        ) from error
