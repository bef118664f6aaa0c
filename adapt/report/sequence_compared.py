"""The figures of sequences, and each method against the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adapt.report.compared import Found, corrected
from adapt.report.sequence_runs import ONE, Run, Sequences
from adapt.report.verdict import nats
from adapt.statistics.paired import paired
from adapt.statistics.words import points


@dataclass(frozen=True)
class Measure:
    """A figure of a sequence."""

    name: str
    """See `sequence_figures`."""
    title: str
    better: int
    """1 where more is better, -1 where less is."""
    is_loss: bool = False
    """Nats a predicted token; else a share, shown in points."""
    is_change: bool = True
    """Shown with its sign."""

    def change(self, value: float) -> str:
        """A difference of this figure."""
        return nats(value, 3) if self.is_loss else points(value)

    def text(self, value: float) -> str:
        """The figure itself."""
        if self.is_change:
            return self.change(value)
        return f"{value:.3f}" if self.is_loss else f"{100 * value:.1f}"


MEASURES = (
    Measure("average", "average score", 1, is_change=False),
    Measure("forgetting", "forgetting rate", -1),
    Measure("learning", "just learnt", 1, is_change=False),
    Measure(ONE, "over separate models", 1),
    Measure("forward_transfer", "forward transfer", 1),
    Measure("loss_average", "average loss", -1, is_loss=True, is_change=False),
    Measure("loss_learning", "loss just learnt", -1, is_loss=True, is_change=False),
    Measure("loss_forgetting", "loss forgetting", -1, is_loss=True),
    Measure("loss_forward_transfer", "loss forward transfer", 1, is_loss=True),
    Measure("general_change", "general loss", -1, is_loss=True),
)


@dataclass(frozen=True)
class Paired(Found):
    """A method's mean difference from the baseline."""

    pairs: int = 0
    better: int = 1
    """Of the figure compared."""

    @property
    def tone(self) -> str:
        """better, worse, or open where the difference may be chance."""
        if not self.significant:
            return "open"
        return "better" if self.better * self.comparison.difference > 0 else "worse"


def compare_methods(sequences: Sequences) -> dict[str, dict[str, Paired]]:
    """By figure and method; ONE is left out, whose differences are those of what was just learnt."""
    compared = {measure.name: _against_baseline(sequences, measure) for measure in MEASURES if measure.name != ONE}
    return {**compared, ONE: {}}


def _against_baseline(sequences: Sequences, measure: Measure) -> dict[str, Paired]:
    """Each method's difference from the baseline, paired by order and seed; p is corrected for how many there are."""
    if sequences.baseline is None:
        return {}
    others = [name for name in sequences.methods if name != sequences.baseline]
    pairs = {name: _pairs(sequences, name, measure) for name in others}
    found = corrected({name: paired(each) for name, each in pairs.items() if each})
    return {
        name: Paired(one.comparison, one.adjusted, one.recipes, len(pairs[name]), measure.better)
        for name, one in found.items()
    }


def _pairs(sequences: Sequences, method: str, measure: Measure) -> list[float]:
    """Differences of runs that have a partner; by seed alone, means over orders, where one side has no order."""
    names = method, sequences.baseline or ""
    in_order = all(sequences.mode(name) == "continual" for name in names)
    mine, theirs = (_by_place(sequences.methods[name], measure, in_order) for name in names)
    return [float(np.mean(mine[place]) - np.mean(theirs[place])) for place in mine if place in theirs]


def _by_place(runs: Sequence[Run], measure: Measure, in_order: bool) -> dict[object, list[float]]:
    found: dict[object, list[float]] = {}
    for run in runs:
        if (value := run.figures.get(measure.name)) is not None:
            found.setdefault((run.order if in_order else (), run.seed), []).append(value)
    return found
