"""What a job must have configured, and which of its defaults differ from those of the sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any


@dataclass(frozen=True, eq=False)  # each is the only one of its kind, and so can be a key
class Kind:
    """A job."""

    name: str
    description: str
    corpus: bool = True
    """Whether it must have `corpus`."""
    sources: bool = False
    """Whether `corpus` must be a list of sources."""
    task: bool = False
    """Whether it must have `task`."""
    selects: bool = False
    """Whether it can train on what it selects of a pool (`select.pool_paths`) in place of a corpus."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The job's own defaults, by dotted field name. A length in epochs or tokens overrides a default in steps."""


DAPT = Kind(
    "dapt",
    "Domain-adaptive pre-training: adapts a model to a corpus (Don't Stop Pretraining, section 3).",
    selects=True,
)
"""The job that a configuration is taken for where no other is named."""
TAPT_LENGTH: Mapping[str, Any] = {"training.epochs": 100.0, "training.learning_rate": 1e-4}
"""TAPT's own defaults. Advice on what to run computes costs with them."""


@cache  # a kind is known by itself
def without_corpus(kind: Kind) -> Kind:
    """The same job where its text comes from elsewhere."""
    return replace(kind, corpus=False)
