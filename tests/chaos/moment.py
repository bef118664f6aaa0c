"""Runs the chain with one fault at one random moment, and checks that nothing was lost, repeated or left behind."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from adapt.ray.connection import FOLDER_PREFIX
from tests.chaos.cluster_field import Field
from tests.chaos.outcome import Outcome
from tests.chaos.storage import LocalRoot, identity, models
from tests.chaos.work import PATIENCE_S, STAGES, Chain, Place, Run, wait_for

TRIES = 4
"""Number of times that the same command is run before the chain counts as lost."""
_GONE_S = 90.0
"""Time after the chain's end in which all its processes must have ended [s]."""
_LOOK_S = 0.25
_ALLOWED = (FOLDER_PREFIX, "pymp-")
"""Prefixes of temporary files that may remain after a run.

They are Ray's logs of a killed job, which are kept for a day, and the temporary folder of a dashboard that still runs.
"""
_PART = 0.8
"""Faults happen within this first share of the duration of an undisturbed run.

A later fault might come too late, because some runs are faster.
"""


@dataclass(frozen=True)
class Undisturbed:
    """A chain without faults, with which disturbed chains are compared."""

    seconds: float
    """Time from the chain's first file to its end [s]."""
    models: dict[str, str]
    """SHA-256 of the weights of each exported model."""
    names: set[str]
    """Names of all files in the storage root, without files whose names differ between complete runs."""


@dataclass
class Scene:
    """A running chain, and the objects that a fault needs to disturb the chain."""

    chain: Chain
    place: Place
    draw: Random
    start: Callable[[], Run]
    """Function that starts the same command again."""
    run: Run
    outcome: Outcome
    grid: Field | None = None
    """The cluster, if the chain runs on a cluster."""
    repairs: list[Callable[[], None]] = field(default_factory=list)
    """Functions that undo a fault when the command has ended, before the command is started again."""
    forgotten: set[str] = field(default_factory=set)
    """Kinds of stages whose files were damaged, so that they must run again."""
    names_file: str = ""
    """Name of a damaged file. A message of a command must contain this name."""
    expected_stages: int = STAGES
    said: list[str] = field(default_factory=list)
    """Messages of the commands that have ended."""
    seen: dict[int, psutil.Process] = field(default_factory=dict)
    """Processes of all commands."""

    @property
    def cluster(self) -> Field:
        """The cluster of a chain that runs on a cluster."""
        assert self.grid
        return self.grid

    def until(self, holds: Callable[[], bool]) -> bool:
        """Waits until a condition holds or the command ends. Returns whether the condition holds."""
        return wait_for(holds, self.run)

    def look(self) -> None:
        """Adds the command's current processes to `seen`."""
        self.seen |= {each.pid: each for each in self.run.below()}

    def end_by_kill(self) -> None:
        """Kills the command, and waits until its processes have ended by themselves."""
        self.look()
        self.run.kill()
        if left := lasting(list(self.seen.values())):
            self.outcome.wrong.append(f"these processes remain after SIGKILL of the command: {', '.join(left)}")

    def progress(self) -> tuple[int, int]:
        """Returns the number of finished stages and the number of training steps."""
        return len(self.place.root.records()), self.place.root.steps()


def try_at(
    happen: Callable[[Scene], None],
    scene: Scene,
    undisturbed: Undisturbed,
) -> Outcome:
    """Causes a fault at a random moment of a chain that has just been started, and runs the chain to its end."""
    outcome, root = scene.outcome, scene.place.root
    scene.until(lambda: bool(root.names()))
    moment = time.monotonic() + scene.draw.random() * _PART * undisturbed.seconds
    scene.until(lambda: time.monotonic() > moment)
    before, at = root.records(), scene.progress()
    outcome.at = state_of(scene)
    began = time.monotonic()
    happen(scene)
    came = _bring_to_end(scene, at)
    outcome.recovered_s = round((came or time.monotonic()) - began, 1) if at[0] < scene.expected_stages else 0.0
    outcome.redone_steps = root.redone_steps()
    outcome.commands = scene.place.commands or outcome.commands
    _check(scene, before, undisturbed)
    return outcome


def state_of(scene: Scene) -> str:
    """Describes the progress of a chain, such as `3 of 6 stages, step 20`."""
    stages, steps = scene.progress()
    over = "" if scene.run.poll() is None else ", after its end"
    return f"{stages} of {STAGES} stages, step {steps}{over}"


def _bring_to_end(scene: Scene, at: tuple[int, int]) -> float | None:
    """Repeats the same command until the chain is finished. Returns when progress first exceeded `at`."""
    came: float | None = None
    for attempt in range(TRIES):
        if attempt:
            scene.run = scene.start()
            # the number of finished stages falls if the record of a damaged stage is deleted
            at = (min(at[0], scene.progress()[0]), at[1])
        end = time.monotonic() + PATIENCE_S
        while scene.run.poll() is None:
            scene.look()
            if not came and (now := scene.progress()) != at and (now[0] > at[0] or now[1] > at[1]):
                came = time.monotonic()
            if time.monotonic() > end:
                scene.outcome.wrong.append(f"the command hung: no end after {PATIENCE_S:.0f} s ({state_of(scene)})")
                scene.end_by_kill()
                break
            time.sleep(_LOOK_S)
        scene.said.append(scene.run.said())
        repairs, scene.repairs = scene.repairs, []
        for repair in repairs:
            repair()
        if scene.run.poll() == 0 and len(scene.place.root.records()) >= scene.expected_stages:
            return came or time.monotonic()
    last = " ".join(scene.said[-1].splitlines()[-2:])
    scene.outcome.wrong.append(f"the command failed {TRIES} times; at last: {last}")
    return came


def _check(scene: Scene, before: dict[str, dict[str, object]], undisturbed: Undisturbed) -> None:
    root, wrong = scene.place.root, scene.outcome.wrong
    after = root.records()
    if (found := models(after)) != undisturbed.models:
        wrong.append(f"the models differ: {found}, undisturbed {undisturbed.models}")
    intact = {stage: record for stage, record in before.items() if stage.partition("/")[0] not in scene.forgotten}
    scene.outcome.redone_stages = [
        stage for stage, record in intact.items() if stage not in after or identity(after[stage]) != identity(record)
    ]
    if scene.outcome.redone_stages:
        wrong.append(f"finished stages ran again: {', '.join(scene.outcome.redone_stages)}")
    if scene.names_file and not any(scene.names_file in said for said in scene.said):
        wrong.append(f"no message names the damaged file {scene.names_file}")
    if partial := root.partial():
        wrong.append(f"partial files remain: {', '.join(partial)}")
    names = {name for name in root.names() if not name.startswith("merge/")}  # leaves out the stage added by a fault
    if other := sorted(names ^ undisturbed.names):
        wrong.append(f"files are missing or remain: {', '.join(other)}")
    left = lasting(list(scene.seen.values()))
    if scene.grid:
        left += lasting([*scene.grid.workers("RayTrain"), *scene.grid.drivers()])
    if left:
        wrong.append(f"processes remain: {', '.join(left)}")
    folders = [scene.place.temporary, *([scene.grid.temporary] if scene.grid else [])]
    temporary = [file.name for folder in folders for file in folder.iterdir()]
    temporary = [name for name in temporary if not name.startswith(_ALLOWED)]
    if temporary:
        wrong.append(f"temporary files remain: {', '.join(temporary)}")


def lasting(processes: list[psutil.Process], within_s: float = _GONE_S) -> list[str]:
    """Waits until processes have ended. Returns name and state of each process that still runs at the time limit."""
    end = time.monotonic() + within_s
    while True:
        left = []
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{process.name()} ({process.status()})")
        if not left or time.monotonic() > end:
            return left
        time.sleep(_LOOK_S)


@contextmanager
def place_in(folder: Path, root: Path | None = None) -> Iterator[Place]:
    """Yields a `Place` with an empty storage root and an empty folder for temporary files.

    Deletes the root and the folder at the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = LocalRoot(root or folder / "runs")
    with tempfile.TemporaryDirectory(prefix="c-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        try:
            yield Place(folder, store, Path(temporary))
        finally:
            store.remove()


def run_undisturbed(place: Place, start: Callable[[], Run]) -> Undisturbed:
    """Runs the chain without a fault.

    Raises:
        RuntimeError: the chain failed.
    """
    run = start()
    wait_for(lambda: bool(place.root.names()), run)
    began = time.monotonic()
    wait_for(lambda: run.poll() is not None, run)
    if run.poll() != 0 or len(place.root.records()) != STAGES:
        raise RuntimeError(f"the chain fails without a fault: {run.said()[-2000:]}")
    return Undisturbed(time.monotonic() - began, models(place.root.records()), place.root.names())
