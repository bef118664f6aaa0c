"""A sequence of two domains, `cs` and `bio`, and made-up records of all its measurements."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapt.config import Config
from adapt.evaluate.measurements import TextLoss
from adapt.job.sequence_job import sequence_stages
from adapt.runner import Done, Record, Stage
from adapt.stage.context import Context
from adapt.stage.domain_sequence import Sequence
from tests.job.worlds import sequence_world
from tests.show.report.fake_studies import loss_change
from tests.stage.done import done_of, record_of

BEFORE = {"cs": 5.0, "bio": 6.0, "general": 4.0}
EXPORTED = (
    {"domain": loss_change("domain", 5.0, 3.0, overlap=0), "general": loss_change("general", 4.0, 4.1, overlap=0)},
    {"domain": loss_change("domain", 5.8, 3.5, overlap=0), "general": loss_change("general", 4.1, 4.4, overlap=0)},
)
"""Losses in the record of the export after each domain, on that domain and on general text."""


def two_domains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    config = sequence_world(folder, monkeypatch)
    return replace(config, corpus=replace(config.corpus, sources=config.corpus.sources[:2]), tasks=[])


def built(config: Config, **changes: Any) -> Sequence:
    return sequence_stages(Context.of(replace(config, sequence=replace(config.sequence, **changes))))


def losses(overlap: int | None = 0, documents: int = 99, **values: float | None) -> dict[str, TextLoss]:
    return {name: TextLoss(value, documents, 99, overlap) for name, value in values.items()}


def records(stage: Sequence, price: float | None = None) -> dict[str, Record]:
    """Returns made-up records of all stages whose results a sequence reads, keyed by the stage's key."""
    cost = {"device_seconds": 10.0, "device_hours": 10 / 3600, "cost": price}
    found = {each.key: record_of(each, cost) for each in stage.inputs.values()}

    def measure(each: Stage[Any], **figures: Any) -> None:
        found[each.key] = record_of(each, cost, **figures)

    for name, evaluation in stage.before.items():
        of_general = {"general": BEFORE["general"]} if "general" in evaluation.corpora else {}
        measure(evaluation, texts=losses(domain=BEFORE[name], **of_general))
    for step in stage.steps:
        if step.export:
            measure(step.export, losses=EXPORTED[step.learnt - 1])
        if step.others:
            measure(step.others, texts=losses(**dict.fromkeys(step.others.corpora, 3.6)))
    return found


def done(stage: Sequence, *others: Record, price: float | None = None) -> Done:
    """Returns the results that a sequence reads.

    Each record in `others` replaces the made-up record of the same stage.
    """
    found = records(stage, price)
    assert all(record.key in found for record in others)
    return done_of(*(found | {record.key: record for record in others}).values())
