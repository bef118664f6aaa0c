"""The kinds of jobs: what each needs configured, and where its defaults are other than the sections'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)  # each is the only one of its kind, and so can be a key
class Kind:
    """A job."""

    name: str
    description: str
    corpus: bool = True
    """Whether it must have `corpus`."""
    sources: bool = False
    """Whether that is a list of sources."""
    task: bool = False
    """Whether it must have `task`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields by dotted name. A number of steps gives way to a length in epochs or tokens."""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("dapt", "Domain-adaptive pre-training (Don't Stop Pretraining, section 3)."),
        Kind(
            "tapt",
            "Task-adaptive pre-training on the text of a labelled task (Don't Stop Pretraining, section 4).",
            corpus=False,
            task=True,
            defaults={"name": "tapt", "training.epochs": 100.0, "training.learning_rate": 1e-4},
        ),
        Kind(
            "finetune",
            "Teaches a model a labelled task, once a seed, and scores it on held-out examples.",
            corpus=False,
            task=True,
            defaults={"name": "finetune"},
        ),
        Kind(
            "evaluate",
            "Compares models on held-out text of several domains (Don't Stop Pretraining, table 12).",
            defaults={"name": "evaluate"},
        ),
        Kind(
            "das",
            "Learns one domain after another against forgetting (Continual Pre-training of Language Models).",
            sources=True,
            defaults={
                "name": "das",
                "method.kind": "das",
                "training.learning_rate": 1e-4,
                "training.weight_decay": 0.0,
                "training.warmup_fraction": 0.1,
                "training.global_batch_size": 248,
                "training.sequence_length": 164,
                "training.max_steps": 2580,
                "finetune.learning_rate": 3e-5,
            },
        ),
        Kind("similarity", "Similarity of domains (Don't Stop Pretraining, section 3.1)."),
        Kind(
            "advise",
            "Says which recipe to run first for a corpus and tasks, at what cost, and why.",
            corpus=False,
            defaults={"name": "advise"},
        ),
    )
}
"""By name."""
