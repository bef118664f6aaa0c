"""Lets longer runs continue shorter ones: schedule `wsd` stores the state before the cooldown.

A longer run with the same settings takes exactly the same steps up to that state, because the order of data, masks and
dropout are functions of (seed, step). The longer run therefore starts from the state (constant rate with cooldowns,
Hägele et al., arXiv 2405.18392). A run whose method or mixture depends on the length of the run always starts at step
0. The identity of the method or mixture declares the dependence.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import TrainingConfig
from adapt.runner import Record, Stage, Store
from adapt.runner.files import folder_aside, link_or_copy, write_atomically
from adapt.runner.key import canonical
from adapt.runner.secret import secret_of
from adapt.terminal.console import log
from adapt.train.checkpoints.retain import STATE_FILE, checkpoints, is_whole, newest_whole, step_of
from adapt.train.checkpoints.seal import Sealing, content_fault, digests_of, forgery_in, reseal, sealed_run
from adapt.train.schedule import learning_rate
from adapt.train.training_run import as_inherited

BRANCHES = "branch"
"""Subfolder of a training stage with the state at the start of the cooldown. The state is never pruned."""
DEPENDS_ON_LENGTH = "depends_on_length"
"""Key in the identity of a method or a mixture whose steps depend on the length of the training."""
_LENGTH = ("max_steps", "max_tokens", "max_flops", "epochs", "cooldown_fraction")


@dataclass(frozen=True)
class Branch:
    """A state that another run stored at the start of its cooldown."""

    record: Record
    folder: Path

    @property
    def step(self) -> int:
        """Number of steps trained up to this state."""
        return step_of(self.folder)


def start_from_branch(stage: Stage[Any], store: Store, training: TrainingConfig, steps: int, run_folder: Path) -> None:
    """Copies the furthest usable state of finished runs to a run's checkpoints, unless the run is already further.

    The folder remains usable if the process is killed at any moment.

    Args:
        stage: training that is about to run.
        store: storage with the records of finished trainings.
        training: settings of this training.
        steps: number of steps of this training.
        run_folder: folder of this training's checkpoints.

    Raises:
        ConfigError, StorageError: the key that signs checkpoints cannot be used.
    """
    if training.schedule != "wsd" or depends_on_length(stage.what()):
        return
    siblings = list(_siblings(stage, store))
    usable = [branch for branch in siblings if _same_rates(branch, training, steps)]
    if not usable:
        if siblings and training.warmup_steps is None:
            log(
                f"train: starts at step 0, because its warm-up differs from that of {siblings[0].record.path.name}; "
                "with training.warmup_steps set, longer runs continue where shorter ones began their cooldown"
            )
        return
    own, secret = newest_whole(run_folder), secret_of(store.root)
    start = step_of(own) if own else 0
    for best in sorted(usable, key=lambda branch: branch.step, reverse=True):
        if best.step <= start:
            return
        theirs = Sealing(secret, sealed_run(best.record.path, best.record.key[:8]))
        sealed = digests_of(best.folder)
        if fault := forgery_in(best.folder, theirs) or content_fault(best.folder, sealed):
            log(f"train: {best.folder} is skipped: {fault}")
            continue
        if not sealed:  # written by an earlier version; links would change the status time, which shows the age
            reseal(best.folder, best.folder.name, theirs)
        run = Sealing(secret, sealed_run(run_folder.parent.parent, run_folder.name))
        _link(best.folder, run_folder, run)
        log(f"train: starts at step {best.step} of {best.record.path.name}, where its cooldown began")
        return


def depends_on_length(what: Mapping[str, Any]) -> bool:
    """Returns whether a training declares that its steps depend on its length.

    The declaration is in the identity of the training's method or mixture.
    """
    return any(what.get(part, {}).get(DEPENDS_ON_LENGTH, False) for part in ("method", "mixture"))


def _siblings(stage: Stage[Any], store: Store) -> Iterator[Branch]:
    """Yields the states stored by finished runs that differ from this run only in their length."""
    wanted = _but_for_length(stage.version, stage.what(), {name: needed.key for name, needed in stage.inputs.items()})
    for record in store.records(stage.kind):
        inputs = {name: made["key"] for name, made in record.inputs.items()}
        if _but_for_length(record.version, record.what, inputs) == wanted:
            yield from (
                Branch(record, checkpoint) for checkpoint in checkpoints(record.path / BRANCHES) if is_whole(checkpoint)
            )


def _but_for_length(version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    training = {name: value for name, value in what["training"].items() if name not in _LENGTH}
    return canonical({"version": version, "what": {**what, "training": training}, "inputs": inputs})


def _same_rates(branch: Branch, training: TrainingConfig, steps: int) -> bool:
    """Returns whether a run with `steps` steps has the same learning rates up to the state of the branch."""
    theirs, length = TrainingConfig(**branch.record.what["training"]), branch.record.metrics["steps"]
    return branch.step <= steps and all(
        learning_rate(training, step, steps) == learning_rate(theirs, step, length) for step in range(branch.step)
    )


def _link(source: Path, run_folder: Path, sealing: Sealing) -> None:
    """Copies a state, and resets its time and cost to 0.

    Files are hard links where possible, because they never change.
    """
    # an existing folder is incomplete, because otherwise it would be the newest checkpoint
    with folder_aside(run_folder / source.name) as aside:
        shutil.copytree(source, aside, copy_function=link_or_copy, dirs_exist_ok=True)
        state = json.loads((aside / STATE_FILE).read_text())
        write_atomically(aside / STATE_FILE, json.dumps({**state, "progress": as_inherited(state["progress"])}))
        reseal(aside, source.name, sealing, changed=STATE_FILE)
