"""Which checkpoints of a run are whole, decided from the files alone.

Ray Train keeps a list of checkpoints too, but writes it in place, seconds after the files: a kill in between leaves
it cut short or behind. So each rank seals its share with a list of its files and their sizes, and a checkpoint is
whole when every rank's seal is there and every file has its size, whoever was killed when.
"""

import json
import shutil
from pathlib import Path

from adapt.runner.files import write_atomically

SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Ray Train's list."""
STATE_FILE = "state.json"
"""In a checkpoint: how it was written, and the progress."""
_NAME = "step-{:08d}"


def folder_name(step: int) -> str:
    """Name of the checkpoint of a step; names sort by step."""
    return _NAME.format(step)


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(checkpoint.name.removeprefix("step-"))


def seal(folder: Path, rank: int, world: int) -> None:
    """Lists what a rank has written into its share of a checkpoint, as the last thing it writes there."""
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    (folder / f"seal-{rank}-of-{world}.json").write_text(json.dumps(sizes))


def rewrite(checkpoint: Path, name: str, text: str) -> None:
    """Gives a file of a whole checkpoint new content, and the seal its size. Links to the old file keep the old one."""
    write_atomically(checkpoint / name, text)
    size = (checkpoint / name).stat().st_size
    for sealed in checkpoint.glob("seal-*.json"):
        sizes = json.loads(sealed.read_text())
        if name in sizes:
            write_atomically(sealed, json.dumps({**sizes, name: size}))


def is_whole(checkpoint: Path) -> bool:
    """Whether all ranks' files have arrived."""
    seals = list(checkpoint.glob("seal-*.json"))
    world_sizes = {int(seal.stem.rsplit("-", 1)[1]) for seal in seals}
    if len(world_sizes) != 1 or len(seals) != world_sizes.pop():
        return False
    try:
        return all(
            (checkpoint / name).stat().st_size == size
            for seal in seals
            for name, size in json.loads(seal.read_text()).items()
        )
    except (OSError, ValueError):
        return False


def checkpoints(run_folder: Path) -> list[Path]:
    """The checkpoint folders of a run, whole or not, oldest first."""
    return sorted(run_folder.glob("step-*"))


def newest_whole(run_folder: Path) -> Path | None:
    """The checkpoint to resume from."""
    return next((checkpoint for checkpoint in reversed(checkpoints(run_folder)) if is_whole(checkpoint)), None)


def remove_torn(run_folder: Path) -> None:
    """Removes checkpoints that are not whole, so that nothing of them ends up in a later one of the same step."""
    for checkpoint in checkpoints(run_folder):
        if not is_whole(checkpoint):
            shutil.rmtree(checkpoint)


def mend_run(run_folder: Path) -> None:
    """Makes a run's folder fit to start from: no torn checkpoints, and no list that would stop Ray Train."""
    remove_torn(run_folder)
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
    """Removes all but the newest checkpoints: those that Ray Train forgot when its list was mended."""
    for checkpoint in checkpoints(run_folder)[:-keep]:
        shutil.rmtree(checkpoint)
