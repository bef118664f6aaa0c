"""Learning one domain after another, and what is done against forgetting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from adapt.config.fields import OpenFraction, how, how_list


@dataclass(frozen=True)
class SequenceConfig:
    """A sequence of domains (dontstop sequence): each of corpus.sources is a domain; each task has one as `domain`."""

    order: list[str] = how_list()
    """Names of corpus.sources in the order in which they are learnt; an empty list keeps the order of corpus.sources.
    Sources that are left out are not learnt."""
    mode: Literal["continual", "separate", "joint"] = how("continual")
    """How the domains are learnt: `continual` one after another, each from the model that the domain before left;
    `separate` each from model.path (ONE); `joint` all at once, mixed (JOINT)."""
    full_matrix: bool = how(True)
    """`true` tests a task after its own domain and after every later one. `false` tests a task only after its own
    domain and after the last, which is enough for averages and forgetting rates; the cost then no longer grows with the
    square of the number of domains."""
    forward_transfer: bool = how(False)
    """Also fine-tune and test each task on model.path and on the model just before the task's domain is learnt: this
    measures forward transfer on scores."""
    replay_fraction: OpenFraction | None = how(None)
    """Share of the rows of each training that are text of the domains before, from the second domain on, with any
    method; every row of that text comes equally often. null replays none, or what the method itself asks for."""
    domain_ids: bool = how(True)
    """Where the method gives each domain parts of its own (docs/forgetting.md): `true` teaches a task with the parts of
    its domain; `false` with those of the domain whose text is nearest to the task's train split. Held-out losses are
    reported both ways."""


@dataclass(frozen=True)
class MethodConfig:
    """What is done against forgetting while training."""

    kind: str = "plain"
    """`plain` does nothing (NCL in dontstop sequence). Every other method has the name of the section below that holds
    its options (docs/methods.md). `package.module:Class` takes your own method (docs/extension.md); the section of its
    options is called like the class, in snake_case."""


def section_of(kind: str) -> str:
    """The section of a method's options: the method's name, or, for a user's own, that of the class in snake_case."""
    module, _, name = kind.partition(":")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() if name else module
