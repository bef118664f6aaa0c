"""The figures of sequences, and each method against the baseline."""

from dataclasses import dataclass

from adapt.better import ways_of
from adapt.show.report.sequences.runs import ONE, SequenceRun, Sequences, by_seed
from adapt.show.report.tasks.compared import RecipeCompared, corrected
from adapt.show.report.tasks.verdict import nats
from adapt.statistics.continual import SequenceFigures
from adapt.statistics.paired import paired
from adapt.statistics.permutation import vary
from adapt.statistics.words import points


@dataclass(frozen=True)
class Measure:
    """A figure of a sequence."""

    name: str
    """The name that `sequence_figures` gives it."""
    title: str
    is_loss: bool = False
    """Whether it is in nats a predicted token; otherwise it is a share, shown in points."""
    is_change: bool = True
    """Whether it is shown with its sign."""

    @property
    def better(self) -> int:
        """1 if more is better, -1 if less is, as `SequenceFigures` declares."""
        return 1 if self.name == ONE else ways_of(SequenceFigures)[self.name]

    def change(self, value: float) -> str:
        """A difference of this figure in words."""
        return nats(value, 3) if self.is_loss else points(value)

    def text(self, value: float) -> str:
        """The figure itself in words."""
        if self.is_change:
            return self.change(value)
        return f"{value:.3f}" if self.is_loss else f"{100 * value:.1f}"


MEASURES = (
    Measure("average", "average score", is_change=False),
    Measure("forgetting", "forgetting rate"),
    Measure("learning", "just learnt", is_change=False),
    Measure(ONE, "over separate models"),
    Measure("forward_transfer", "forward transfer"),
    Measure("loss_average", "average loss", is_loss=True, is_change=False),
    Measure("loss_learning", "loss just learnt", is_loss=True, is_change=False),
    Measure("loss_forgetting", "loss forgetting", is_loss=True),
    Measure("loss_forward_transfer", "loss forward transfer", is_loss=True),
    Measure("general_change", "general loss", is_loss=True),
)


@dataclass(frozen=True)
class Paired(RecipeCompared):
    """A method's mean difference from the baseline."""

    pairs: int = 0
    """The number of seeds that both have."""
    better: int = 1
    """1 if more of the compared figure is better, -1 if less is."""

    @property
    def tone(self) -> str:
        """`better`, `worse`, or `open` if the difference may be chance."""
        if not self.significant:
            return "open"
        return "better" if self.better * self.comparison.difference > 0 else "worse"


def compare_methods(sequences: Sequences) -> dict[str, dict[str, Paired]]:
    """Compares each method with the baseline, by figure and method.

    The figure ONE is not compared: its differences are those of what was just learnt.
    """
    compared = {measure.name: _against_baseline(sequences, measure) for measure in MEASURES if measure.name != ONE}
    return {**compared, ONE: {}}


def _against_baseline(sequences: Sequences, measure: Measure) -> dict[str, Paired]:
    """Each method's difference from the baseline, paired by seed; p is corrected for how many there are."""
    if sequences.baseline is None:
        return {}
    others = [name for name in sequences.methods if name != sequences.baseline]
    pairs = {name: values for name in others if (values := _pairs(sequences, name, measure))}
    comparisons = corrected(
        {
            name: paired([mine - theirs for mine, theirs in values], any(map(vary, zip(*values, strict=True))))
            for name, values in pairs.items()
        }
    )
    return {
        name: Paired(compared.comparison, compared.adjusted, compared.recipes, len(pairs[name]), measure.better)
        for name, compared in comparisons.items()
    }


def _pairs(sequences: Sequences, method: str, measure: Measure) -> list[tuple[float, float]]:
    """The values of a method and of the baseline with each seed that both have.

    They are means over the orders that both share, or over all orders if one of them has none.
    """
    names = method, sequences.baseline or ""
    mine, theirs = (sequences.methods[name] for name in names)
    if all(sequences.mode(name) == "continual" for name in names):
        shared = {(run.order, run.seed) for run in mine if _value(run, measure) is not None}
        shared &= {(run.order, run.seed) for run in theirs if _value(run, measure) is not None}
        mine, theirs = ([run for run in runs if (run.order, run.seed) in shared] for runs in (mine, theirs))
    measured, expected = (by_seed((run, _value(run, measure)) for run in runs) for runs in (mine, theirs))
    return [(measured[seed], expected[seed]) for seed in measured if seed in expected]


def _value(run: SequenceRun, measure: Measure) -> float | None:
    return run.figures.get(measure.name)
