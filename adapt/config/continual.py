"""Learning one domain after another, and what is done against forgetting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from adapt.config.fields import how, how_list


@dataclass(frozen=True)
class SequenceConfig:
    """A sequence of domains (jobs/sequence.py): each of corpus.sources is one; tasks say by `domain` where they belong."""

    order: list[str] = how_list()
    """Names of corpus.sources in the order in which they are learnt; empty is as they are listed. Sources left out are
    not learnt."""
    mode: Literal["continual", "separate", "joint"] = how("continual")
    """`continual` one after another, each on the model that the last one left; `separate` each on model.path (ONE);
    `joint` all at once, mixed (JOINT)."""
    full_matrix: bool = how(True)
    """Test every task after each domain from its own on. `false`: only after its own and after the last, which averages
    and forgetting rates are made of; the cost no longer grows with the square of the number of domains."""
    forward_transfer: bool = how(False)
    """Also fine-tune and test each task before its domain is learnt, and on model.path: forward transfer on scores."""


@dataclass(frozen=True)
class MethodConfig:
    """What is done against forgetting while training."""

    kind: str = "plain"
    """`plain` does nothing (in jobs/sequence.py: NCL). The other methods are called like the sections of their options
    below (docs/methods.md); `package.module:Class` takes your own (docs/extension.md), whose section is the name of the
    class in snake_case."""


def section_of(kind: str) -> str:
    """The section of a method's options: its name; of a user's own, the class's in snake_case."""
    module, _, name = kind.partition(":")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() if name else module
