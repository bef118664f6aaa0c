"""Lets a longer run continue a shorter run, and each phase of a run continue the previous phase.

With the schedule `wsd`, a run stores its state before the cooldown of the learning rate.

A longer run with the same settings takes exactly the same steps up to that state, because the data order, the masks and
the dropout are functions of (seed, step). The longer run therefore starts from the state (constant rate with cooldowns,
Hägele et al., arXiv 2405.18392). A run whose method or mixture depends on the length of the run always starts at step
0. Such a method or mixture declares this dependence in the stage's key.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from adapt.config import TrainingConfig
from adapt.runner import Record, Stage, Store
from adapt.runner.files import folder_aside, link_or_copy, write_atomically
from adapt.runner.mirror import fetch_spare
from adapt.runner.secret import Secret, secret_of
from adapt.runner.stage import canonical
from adapt.support.errors import DataError, StorageError
from adapt.terminal.console import log
from adapt.train.checkpoints.stored_checkpoints import (
    STATE_FILE,
    Sealing,
    checkpoints,
    content_fault,
    digests_of,
    forgery_in,
    is_whole,
    newest_whole,
    reseal,
    sealed_run,
    step_of,
)
from adapt.train.schedule import learning_rate
from adapt.train.training_run import CHECKPOINTS, as_inherited

BRANCHES = "branch"
"""Subfolder of a training stage with the state at the start of the cooldown. The state is never pruned."""
DEPENDS_ON_LENGTH = "depends_on_length"
"""Key in a stage's `what` that is set if the steps of the method or the mixture depend on the length of the run."""
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


def start_from_phase(record: Record, step: int, run_folder: Path, root: Path) -> None:
    """Copies the last checkpoint of the previous phase to a run's checkpoints, unless the run has a checkpoint.

    Args:
        record: record of the previous phase.
        step: number of steps up to the end of the previous phase.
        run_folder: folder of this phase's checkpoints.
        root: folder with all stages.

    Raises:
        ConfigError, StorageError: the key that signs checkpoints cannot be used.
        DataError: a streamed corpus ended in the previous phase.
        StorageError: the checkpoint was removed, is damaged, or was written by another user.
    """
    if newest_whole(run_folder):
        return
    if record.metrics["steps"] < step:
        raise DataError(
            f"the corpus ended after {record.metrics['steps']} of {step} steps, so nothing is left for the next phase",
            "shorten the earlier phases, or add text",
        )
    secret = secret_of(root)
    fetch_spare(record.path, CHECKPOINTS)
    last = _last_state(record)
    fault = _fault(Branch(record, last), secret) if last and step_of(last) == step else "it was removed"
    if fault or last is None:
        raise StorageError(
            f"the next phase begins with the last checkpoint of {record.path}, which cannot be used: {fault}",
            f"delete {record.path} to train that phase again",
        )
    _link(last, run_folder, Sealing(secret, sealed_run(run_folder.parent.parent, run_folder.name)))


def start_from_branch(
    stage: Stage[Any], store: Store, training: TrainingConfig, steps: int, run_folder: Path, first: int = 0
) -> None:
    """Copies the furthest usable state of finished runs to a run's checkpoints, unless the run is already further.

    The folder remains usable if the process is killed at any moment.

    Args:
        stage: training stage that is about to run.
        store: storage with the records of finished training runs.
        training: settings of this run.
        steps: number of the last step of this run, counted from the first phase.
        run_folder: folder of this run's checkpoints.
        first: number of steps of earlier phases.

    Raises:
        ConfigError, StorageError: the key that signs checkpoints cannot be used.
    """
    identity = stage.what()
    if (training.schedule != "wsd" and "phase" not in identity) or depends_on_length(identity):
        return
    siblings = list(_siblings(stage, store))
    usable = [branch for branch in siblings if _same_rates(branch, training, steps, first)]
    if not usable:
        if siblings and training.warmup_steps is None:
            log(
                f"train: starts at step 0, because its warm-up differs from that of {siblings[0].record.path.name}; "
                "if you set training.warmup_steps, longer runs continue from where shorter runs began their cooldown"
            )
        return
    own, secret = newest_whole(run_folder), secret_of(store.root)
    start = step_of(own) if own else first
    for best in sorted(usable, key=lambda branch: branch.step, reverse=True):
        if best.step <= start:
            return
        if fault := _fault(best, secret):
            log(f"train: {best.folder} is skipped: {fault}")
            continue
        run = Sealing(secret, sealed_run(run_folder.parent.parent, run_folder.name))
        _link(best.folder, run_folder, run)
        where = "which is a shorter run" if "phase" in identity else "where its cooldown began"
        log(f"train: starts at step {best.step} of {best.record.path.name}, {where}")
        return


def _fault(branch: Branch, secret: Secret) -> str | None:
    """Returns the reason why the stored state of another run cannot be used. Returns None if it can be used."""
    theirs = Sealing(secret, sealed_run(branch.record.path, branch.record.key[:8]))
    return forgery_in(branch.folder, theirs) or content_fault(branch.folder, digests_of(branch.folder))


def _last_state(record: Record) -> Path | None:
    """Returns the last checkpoint of a finished training run; None if it was removed."""
    return newest_whole(record.path / CHECKPOINTS / record.key[:8])


def depends_on_length(what: Mapping[str, Any]) -> bool:
    """Returns whether a training run declares that its steps depend on its number of steps.

    The declaration is in the part of `what` about the method or the mixture.
    """
    return any(what.get(part, {}).get(DEPENDS_ON_LENGTH, False) for part in ("method", "mixture"))


def _siblings(stage: Stage[Any], store: Store) -> Iterator[Branch]:
    """Yields the states stored by finished runs that differ from this run only in their length."""
    wanted = _but_for_length(stage.version, stage.what(), {name: needed.key for name, needed in stage.inputs.items()})
    for record in store.records(stage.kind):
        inputs = {name: made["key"] for name, made in record.inputs.items()}
        if _but_for_length(record.version, record.what, inputs) == wanted:
            fetch_spare(record.path, BRANCHES, *([CHECKPOINTS] if "phase" in record.what else []))
            states = [state for state in checkpoints(record.path / BRANCHES) if is_whole(state)]
            if "phase" in record.what and (last := _last_state(record)):
                states.append(last)
            yield from (Branch(record, state) for state in states)


def _but_for_length(version: int, what: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    training = {name: value for name, value in what["training"].items() if name not in _LENGTH}
    changed = {"training": training, **({"phase": {}} if "phase" in what else {})}
    return canonical({"version": version, "what": {**what, **changed}, "inputs": inputs})


def _same_rates(branch: Branch, training: TrainingConfig, steps: int, first: int) -> bool:
    """Returns whether a run of `steps` steps has the same learning rates as the branch's run up to the stored state."""
    known = {field.name for field in fields(TrainingConfig)}  # earlier versions had other fields too
    given = {name: value for name, value in branch.record.what["training"].items() if name in known}
    theirs, last = TrainingConfig(**given), branch.record.metrics["steps"]
    return branch.step <= steps and all(
        learning_rate(training, step, steps - first) == learning_rate(theirs, step, last - first)
        for step in range(branch.step - first)
    )


def _link(source: Path, run_folder: Path, sealing: Sealing) -> None:
    """Copies a state to a run's checkpoints, and sets the time and cost in the copy to 0.

    Files are hard links where possible, because they never change.
    """
    # replaces an existing folder, which is incomplete: a complete one would be the newest checkpoint
    with folder_aside(run_folder / source.name) as aside:
        shutil.copytree(source, aside, copy_function=link_or_copy, dirs_exist_ok=True)
        state = json.loads((aside / STATE_FILE).read_text())
        write_atomically(aside / STATE_FILE, json.dumps({**state, "progress": as_inherited(state["progress"])}))
        reseal(aside, source.name, sealing, changed=STATE_FILE)
