"""What a user may set of ELLE: section `elle`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapt.config import Fraction, NonNegativeFloat, NonNegativeInt


@dataclass(frozen=True)
class ElleOptions:
    """ELLE: the model grows before each domain, recovers on past text, and replays it (arXiv 2203.06311)."""

    layers: list[int] = field(default_factory=lambda: [2, 2, 1, 1])
    """How many layers are added before the first domain, the second, and so on; none after the list's end. At most as
    many as the model has."""
    heads: list[int] = field(default_factory=lambda: [2, 2, 1, 1])
    """How many attention heads each layer gets before the first domain, the second, and so on; none after the list's
    end. The width of states and of feed-forward layers grows in proportion. The model computes the same where the width
    is a whole multiple of what it was."""
    new_layers: Literal["silent", "copies"] = "silent"
    """What a new layer starts as. `silent`: a copy of the one below it, its output projections 0 so that the model
    computes the same. `copies`: the copy as it is, as published; the model then computes something else."""
    noise: NonNegativeFloat = 0.01
    """Standard deviation of what is added to the weights that make copied units of the layers: equal units would learn
    alike. With 0, dropout alone tells them apart."""
    recovery_fraction: Fraction = 0.08
    """Share of the steps of a training, its first, that see text of the domains before alone, to recover what growth
    has lost: 5,000 beside 62,500, as published. Without a domain before there are none."""
    replay_fraction: Fraction = 0.1
    """Share of the other steps whose rows are all of one of the domains before. The more its loss has fallen of late,
    the more often a domain is drawn."""
    prompt_length: NonNegativeInt = 1
    """Vectors before each document of a domain, which are given again when the model is fine-tuned: a token that says
    the domain, as published. They take positions, so that the model takes so many tokens less. 0 for none."""
