"""Tests that every job can be tuned by a search: it builds a trial that names its possible metrics. Trains no model."""

from pathlib import Path
from typing import Any

import pytest

from adapt.job import JOBS
from adapt.parse import parse_values
from adapt.tuning.job_trial import figures_of, on_dev, trial_of
from tests.job.worlds import SPLITS, enter

SOURCES = [{"name": name, "paths": f"data/{name}.jsonl"} for name in ("one", "two")]
NEEDED: dict[str, dict[str, Any]] = {
    "dapt": {"corpus.paths": "data/one.jsonl"},
    "select": {"select.pool_paths": "data/one.jsonl", "select.per_example": 2},
    "sequence": {"corpus.sources": SOURCES},
    "merge": {"corpus.sources": SOURCES, "merge.models": ["model"]},
    "ensemble": {"corpus.paths": "data/one.jsonl", "ensemble.models": ["model", "model/"]},
    "distil": {"corpus.paths": "data/one.jsonl", "distill.teachers": ["model"]},
    "evaluate": {"corpus.paths": "data/one.jsonl", "comparison.models": [{"name": "other", "path": "model"}]},
    "similarity": {"corpus.sources": SOURCES},
    "vocabulary": {"corpus.paths": "data/one.jsonl"},
    "advise": {"corpus.paths": "data/one.jsonl"},
}
FIGURES = {
    "dapt": {"dev_score", "losses.domain.after", "losses.general.after"},
    "tapt": {"dev_score", "losses.domain.after", "losses.general.after"},
    "finetune": {"dev_score"},
    "sequence": {"dev_score", "average", "forgetting"},
    "select": {"kl_reduction"},
}
TABLES = ("evaluate", "similarity")
"""Jobs whose only results are tables. They have no single metric that a search could optimize."""


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_a_trial(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = enter(tmp_path, monkeypatch, *SPLITS, "one", "two")
    task = {"name": "toy", "domain": "one", **{split: f"data/{split}.jsonl" for split in SPLITS}}
    given = {
        "model.path": config.model.path,
        "storage.root": config.storage.root,
        **({"tasks": [task]} if name == "sequence" else {"task": task}),
        "training": {"sequence_length": 64, "max_steps": 3},
        "evaluation.sequence_length": 64,
    }
    asked = parse_values({**given, **NEEDED.get(name, {})}, JOBS[name].kind, "here")
    trial = trial_of(JOBS[name], on_dev(asked))
    assert figures_of(trial) >= FIGURES.get(name, set())
    assert bool(figures_of(trial)) == (name not in TABLES)
