"""Runs worlds. A world is a random configuration with its files. No other fuzz file depends on how stages are built.

The code of `adapt` computes everything up to the rows of a training run. Stages that load a model are left out.
Training runs only read their batches. Ray Data's tasks run in this process, so a world takes a fraction of a second.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.corpus.shard_batches import Feed, open_shards
from adapt.job import JOBS
from adapt.method.das.stage import ImportanceMeasured, MeasureImportance
from adapt.model.start import MODEL_FOLDER
from adapt.parse import parse_values
from adapt.runner import Outcome, Record, Stage, Store, ensure
from adapt.stage.context import Context
from adapt.stage.training_result import RAN_ON
from adapt.support.schema import TOKENS, marks_of
from adapt.train.training_run import TrainingRun
from tests.fuzz.grammar import World
from tests.fuzz.here import from_items
from tests.fuzz.here import range as range_here

READ = ("manifest", "dedup", "prepare", "texts", "select", "task", "train")
"""Stages that are run, by kind. All other stages need a model, so only their keys are tested."""
BATCHES = 200
"""Maximum number of batches that a training run reads."""
DIGESTS = f".digests-{os.getuid()}.json"
SEEN = "seen.json"
"""Name of the file in a training run's folder that lists the texts that the run read."""


@dataclass(frozen=True)
class Ran:
    """The outcome of running a world."""

    root: Path
    last: Stage[Any] | None
    error: BaseException | None

    @cached_property
    def stages(self) -> dict[str, Stage[Any]]:
        """Returns the stages, keyed by their keys. The inputs of a stage come before the stage."""
        found: dict[str, Stage[Any]] = {}

        def visit(stage: Stage[Any]) -> None:
            for needed in stage.inputs.values():
                visit(needed)
            found[stage.key] = stage

        if self.last:
            visit(self.last)
        return found

    @cached_property
    def records(self) -> dict[str, Record]:
        """Returns the records of the finished stages, keyed by the keys of the stages."""
        store = Store(self.root)
        found = {key: store.find(stage.kind, stage.name, key) for key, stage in self.stages.items()}
        return {key: record for key, record in found.items() if record}

    def of(self, kind: str) -> list[Record]:
        """Returns the records of all finished stages of a kind."""
        return [record for record in self.records.values() if record.stage == kind]


def run(world: World, data: Path, root: Path, model: Path, before: Path | None = None) -> Ran:
    """Parses, builds and runs a world, as the command of its job does. Returns an error instead of raising it.

    Args:
        world: the world to run.
        data: folder of the world's files.
        root: folder for the results.
        model: folder of the initial model.
        before: results folder of an earlier run. Digests of files are taken from there.
    """
    last = None
    if before and (known := before / DIGESTS).exists():
        root.mkdir(parents=True, exist_ok=True)
        shutil.copy(known, root / DIGESTS)
    values = {**world.filled(data), "model.path": str(model), "storage.root": str(root)}
    try:
        job = JOBS[world.kind]
        context = Context.of(parse_values(values, job.kind, "the world"))
        last = job.final(context)
        context.digests.save()
        for stage in Ran(root, last, None).stages.values():
            if stage.kind in READ:
                ensure(stage, Store(root))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Ran(root, last, error)
    return Ran(root, last, None)


@contextmanager
def cheap(model: Path) -> Iterator[None]:
    """Runs Ray Data's tasks in this process, and makes training runs only read their batches, inside the block.

    Args:
        model: folder of the model that every training run copies as its result.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.data.from_items", from_items)
        patch.setattr("ray.data.range", range_here)
        with reading(model):
            yield


@contextmanager
def reading(model: Path) -> Iterator[None]:
    """Makes training runs inside the block only read their batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adapt.train.ray_train.launch", lambda job: _read(job, model))
        patch.setattr(MeasureImportance, "run", lambda *_: Outcome(ImportanceMeasured(0, 0, 0, 0.0, {}, {}, 1.0)))
        yield


def _read(job: TrainingRun, model: Path) -> dict[str, Any]:
    """Reads the batches of a training run, records their content, and writes a copy of `model` as the result."""
    open_shards.cache_clear()  # clears the cache, because folders of shards may have been rewritten
    digest, steps, pieces = hashlib.sha256(), 0, dict[int, list[int]]()
    for batch in islice(_batches(job), min(job.steps, BATCHES)):
        steps += 1
        for name in sorted(batch):
            digest.update(name.encode() + np.ascontiguousarray(batch[name]).tobytes())
        if job.online:
            columns = (batch[name] for name in ("rows", "epochs", TOKENS, "lengths"))
            new = (row for row in zip(*columns, strict=True) if not row[1])
            pieces |= {int(row): tokens[:length].tolist() for row, _, tokens, length in new}
    streamed = [token for row in sorted(pieces) for token in pieces[row]]
    seen = {"digest": digest.hexdigest(), "steps": job.steps, "stream": streamed}
    (Path(job.folder) / SEEN).write_text(json.dumps(seen))
    shutil.copytree(model, Path(job.folder) / MODEL_FOLDER, dirs_exist_ok=True)
    training = job.config.training
    tokens = steps * training.global_batch_size * training.sequence_length
    counts = {"step": steps if job.online else job.steps, "tokens": tokens, "seconds": 1.0, "data_wait_seconds": 0.0}
    counts["cut_short"] = ""
    spent = {"own_tokens": tokens, "device_seconds": 1.0, "peak_memory_bytes": 0}
    return {**dict.fromkeys(RAN_ON), **counts, **spent}


def _batches(job: TrainingRun) -> Iterator[dict[str, np.ndarray]]:
    if job.online:
        return job.online.batches(0, parallel=False)
    feeds = (
        Feed(
            folders=job.corpora,
            mixture=stretch.mixture,
            sequence_length=stretch.sequence_length,
            global_batch_size=stretch.global_batch_size,
            first_step=stretch.first,
            last_step=stretch.last,
            rank=0,
            world=1,
            marks=marks_of(job.config.objective.kind),
            shift=stretch.shift,
        )
        for stretch in job.stretches
    )
    return chain.from_iterable(feed.read() for feed in feeds)
