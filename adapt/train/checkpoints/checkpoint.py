"""Resumable checkpoints: each rank writes its share to local disk, Ray Train stores it while training goes on."""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointUploadMode

from adapt.method.base import Method
from adapt.support.errors import CheckpointError, StorageError
from adapt.train.checkpoints.retain import folder_name, is_whole, newest_whole, remove_torn
from adapt.train.checkpoints.seal import Sealing, content_fault, digests_of, forgery_in, write_seal
from adapt.train.training_run import Progress

if TYPE_CHECKING:
    from adapt.train.engine import Engine  # needs DeepSpeed; another engine with its methods does as well

METHOD_FILE = "method.pt"
"""State of the method, in a checkpoint."""
_ARRIVAL_S = 300.0
"""How long a rank that has failed waits until what it saved is stored [s]. An upload that fails ends the run itself."""
_NO_SPACE = 2**20
"""A disk with less is full [bytes]: a file that did not fit leaves some."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    Args:
        engine: whose state is saved.
        method: whose state, if it has one, is saved too.
        run_folder: the Ray Train run's folder, where they are stored.
        sealing: signs them, and recognizes them before they are loaded.
        branches: folder on the same storage for the state after `branch_step`, which is kept.
        branch_step: see `adapt.train.checkpoints.branch`.
    """

    engine: "Engine"
    method: Method
    run_folder: Path
    sealing: Sealing
    branches: Path | None = None
    branch_step: int | None = None
    _sent: list[Path] = field(default_factory=list)
    """The folders in which saved checkpoints will be stored, the newest last."""

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Delays an error of the block until the last save is stored: an error ends all ranks, which do the storing."""
        try:
            yield
        except Exception:
            end = time.monotonic() + _ARRIVAL_S
            while self._sent and not is_whole(self._sent[-1]) and time.monotonic() < end:
                time.sleep(0.1)
            raise

    def save(self, progress: Progress) -> None:
        """Saves the state of all ranks. Returns once it is on local disk; the rest happens in the background.

        Raises:
            StorageError: there is no space on local disk.
        """
        with _local_space():
            folder = Path(tempfile.mkdtemp(prefix=self._prefix))
            self.engine.save(folder, asdict(progress))
            if dist.get_rank() == 0 and (state := self.method.state()):
                torch.save(state, folder / METHOD_FILE)
            write_seal(folder, dist.get_rank(), dist.get_world_size(), folder_name(progress.step), self.sealing)
        if self.branches and progress.step == self.branch_step:
            _keep(folder, self.branches / folder_name(progress.step))
        ray.train.report(
            {"step": progress.step},
            checkpoint=Checkpoint.from_directory(folder),
            checkpoint_dir_name=folder_name(progress.step),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=True,
        )
        self._sent.append(self.run_folder / folder_name(progress.step))

    def load(self) -> Progress:
        """Restores the newest whole checkpoint, if there is one, whatever resources it was written with.

        Raises:
            CheckpointError: its files are not those that the run wrote. It was removed.
            TrainingError: it was written with other resources and cannot be converted.
        """
        for leftover in Path(tempfile.gettempdir()).glob(f"{self._prefix}*"):  # ranks that were killed left them
            shutil.rmtree(leftover, ignore_errors=True)
        choice: list[Any] = [None, None, {}]  # rank 0 chooses: file systems may show other nodes another state
        if dist.get_rank() == 0:
            remove_torn(self.run_folder)
            if newest := newest_whole(self.run_folder):
                choice = [newest, forgery_in(newest, self.sealing), digests_of(newest)]
        dist.broadcast_object_list(choice)
        checkpoint, forgery, digests = choice
        if checkpoint is None:
            return Progress()
        self._check(checkpoint, forgery, digests)
        progress = Progress(**self.engine.load(checkpoint))
        if (file := checkpoint / METHOD_FILE).exists():
            self.method.load_state(torch.load(file, map_location=self.engine.device, weights_only=True))
        return progress

    def _check(self, checkpoint: Path, forgery: str | None, digests: dict[str, str]) -> None:
        """Refuses a checkpoint that has changed since it was sealed. Each rank reads a share of its files.

        Raises:
            CheckpointError: on all ranks.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        own = {name: digests[name] for name in sorted(digests)[rank::world]}
        faults: list[str | None] = [None] * world
        dist.all_gather_object(faults, forgery or content_fault(checkpoint, own))
        if fault := next(filter(None, faults), None):
            if rank == 0:
                shutil.rmtree(checkpoint)
            raise CheckpointError(
                f"the checkpoint {checkpoint} is not as this job wrote it ({fault}); it was removed",
                "run the same command again: it goes on from the checkpoint before",
            )

    @property
    def _prefix(self) -> str:
        """A prefix of this run's folders alone: the same run below another root may be training on this machine too."""
        return f"checkpoint-{hashlib.sha256(str(self.run_folder).encode()).hexdigest()[:12]}-"


def _keep(folder: Path, target: Path) -> None:
    """Copies the shares of all ranks before the step's checkpoint is stored: no run may resume later without them."""
    if dist.get_rank() == 0:
        shutil.rmtree(target, ignore_errors=True)  # what is there is torn, or was left by ranks that crashed
        target.mkdir(parents=True)
    dist.barrier()
    shutil.copytree(folder, target, dirs_exist_ok=True)
    dist.barrier()


@contextmanager
def _local_space() -> Iterator[None]:
    """Raises StorageError where local disk is full: torch does not say why it could not write, so we look."""
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
