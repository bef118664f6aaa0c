"""What a job needs configured, and where its defaults are other than the sections'."""

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


DAPT = Kind("dapt", "Domain-adaptive pre-training (Don't Stop Pretraining, section 3).")
"""What a configuration is taken for where nothing else is said."""
TAPT_LENGTH: Mapping[str, Any] = {"training.epochs": 100.0, "training.learning_rate": 1e-4}
"""TAPT's own defaults, which advice reckons with."""
