"""Micro-batches of trials whose device ran out of memory with larger ones. They are part of no key."""

from collections.abc import Container
from typing import Any

from adapt.config import Config
from adapt.errors import DeviceMemoryError
from adapt.runner import Record, Stage, Store
from adapt.runner.reach import everything
from adapt.stage.finetune import Finetune
from adapt.stage.train import Train
from adapt.train.schedule import micro_batch, smaller_micro_batch
from adapt.tuning.trial import Trial

MICRO_BATCH, FINETUNE_MICRO_BATCH = "training.micro_batch", "finetune.micro_batch"


def with_fewer(config: Config, error: DeviceMemoryError) -> dict[str, int]:
    """The field that makes passes smaller, with the next smaller value.

    Args:
        config: of the trial.
        error: of its stage, with two sequences a pass or more.
    """
    if error.field == FINETUNE_MICRO_BATCH:
        return {error.field: error.micro_batch // 2}
    return {MICRO_BATCH: smaller_micro_batch(config.training, config.resources.workers, error.micro_batch)}


def taken(trial: Trial, given: Container[str], store: Store) -> dict[str, int]:
    """The micro-batches that the finished stages of a trial ran with, by field, where they are less than configured.

    So they are known after a kill of the driver, too. What `auto` has chosen by itself is not looked at: it is the
    machine's.

    Args:
        trial: whose stages are finished.
        given: keys of stages that others make for all trials.
        store: where they live.
    """
    found: dict[str, int] = {}
    for stage in everything([trial]):
        record = store.known(stage.kind, stage.name, stage.key) if isinstance(stage, Train | Finetune) else None
        if record is None or stage.key in given:
            continue
        field = MICRO_BATCH if isinstance(stage, Train) else FINETUNE_MICRO_BATCH
        ran = record.resources.get("micro_batch")
        if ran and _is_less(int(ran), stage, record):
            found[field] = min(int(ran), found.get(field, int(ran)))
    return found


def _is_less(ran: int, stage: Stage[Any], record: Record) -> bool:
    """Whether a stage ran with a smaller micro-batch than it has now."""
    if isinstance(stage, Finetune):
        return ran < stage.config.finetune.passing
    assert isinstance(stage, Train)
    training, configured = stage.config.training, stage.config.resources.workers
    workers = record.resources["workers"] if isinstance(configured, int) else configured
    asked = record.resources.get("micro_batch_asked", training.micro_batch)
    return asked != "auto" and (training.micro_batch == "auto" or ran < micro_batch(training, workers)[0])
