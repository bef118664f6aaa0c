"""Builds a sequence of two domains, `cs` and `bio`, and made-up records of all its measurements."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapt.config import Config
from adapt.evaluate.measure_model import LOSSES_FILE
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
"""Losses that the export after each domain records: on that domain and on general text."""


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
        texts = {"domain": BEFORE[name], **of_general}
        measure(evaluation, texts=losses(**texts))
        found[evaluation.key] = replace(found[evaluation.key], path=Path("before") / name)
        write_losses(found[evaluation.key].path, texts)
    for step in stage.steps:
        if step.export:
            exported, after = EXPORTED[step.learnt - 1], Path("after") / step.export.name
            measure(step.export, losses=exported)
            entry = {"stage": "evaluate", "key": "k", "path": str(after)}
            found[step.export.key] = replace(found[step.export.key], inputs={"after": entry})
            write_losses(after, {name: of.after.value for name, of in exported.items()})
        if step.others:
            texts = dict.fromkeys(step.others.corpora, 3.6)
            measure(step.others, texts=losses(**texts))
            write_losses(found[step.others.key].path, texts)
    return found


def write_losses(folder: Path, means: Mapping[str, float], documents: int = 8) -> None:
    """Writes per-document losses of an evaluation, with 10 predictions each. Documents differ by up to 0.1 nats."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, documents)
    values = {
        name: {"losses": (10 * (mean + noise - noise.mean())).tolist(), "counts": [10] * documents}
        for name, mean in means.items()
    }
    (folder / LOSSES_FILE).write_text(json.dumps(values))


def done(stage: Sequence, *others: Record, price: float | None = None) -> Done:
    """Returns the results that a sequence reads.

    Each record in `others` replaces the made-up record of the same stage.
    """
    found = records(stage, price)
    assert all(record.key in found for record in others)
    made = {of.key: replace(of, inputs=found[of.key].inputs, path=found[of.key].path) for of in others}
    return done_of(*(found | made).values())
