"""Shows how far a sequential study is: the round, each comparison, and what the remaining rounds may cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from adapt.show.blocks import NONE, Block, Table, joined_names, summary


@dataclass(frozen=True)
class ComparisonNow:
    """A comparison of a sequential study, as text."""

    name: str
    """Name of the task or figure, and the recipe."""
    verdict: str
    """The verdict, `undecided`, or `not looked at yet`."""
    look: str
    """The look at which the comparison ended, or the latest look, such as `2 of 4`."""
    seeds: int
    """Number of seeds per side at this look."""
    difference: str
    interval: str
    """Repeated 95% interval of the difference."""
    outlook: str = ""
    """Expected number of seeds, and the probability of a verdict. Empty if the comparison has ended."""
    is_open: bool = True


@dataclass(frozen=True)
class CostForecast:
    """The remaining stages, device time and cost of a sequential study, in one of three forecasts."""

    name: str
    """Which forecast: `smallest`, `expected` or `largest`, and what it means."""
    stages: int | None
    """Number of stages that take device time. None if unknown."""
    device_hours: float | None
    """Device-hours of the stages whose time is known. None if none is known."""
    cost: float | None
    unknown: int = 0
    """Number of stages whose time is not known."""


@dataclass(frozen=True)
class StudyNow:
    """The state of a sequential study."""

    looks: int
    """Number of planned looks."""
    seeds: Sequence[int]
    """Number of seeds per recipe at each planned look."""
    next_look: int | None
    """Number of the look that the running or next round leads to. None if no further look will be made."""
    comparisons: Sequence[ComparisonNow] = ()
    ahead: Sequence[CostForecast] = field(default_factory=list)

    @property
    def open(self) -> int:
        """Number of comparisons that have not ended."""
        return sum(comparison.is_open for comparison in self.comparisons)

    def sentence(self) -> str:
        """Returns a sentence on the round and the number of comparisons that have ended."""
        if not self.comparisons:
            seeds = joined_names([str(number) for number in self.seeds])
            return f"This study is sequential: it looks at its results with {seeds} seeds per side."
        total = len(self.comparisons)
        ended = f"{total - self.open} of {total} comparisons have ended"
        if self.next_look is None:
            return f"The sequential study is finished: {ended} within {self.seeds[-1]} seeds per side."
        left = self.looks - self.next_look
        more = f"{left} more may follow, up to {self.seeds[-1]} seeds" if left else "it is the last"
        return (
            f"Round {self.next_look} of {self.looks}, with {self.seeds[self.next_look - 1]} seeds per side: {ended};"
            f" {more}."
        )

    def blocks(self) -> list[Block]:
        """Shows the round, every comparison, and the forecast of the cost."""
        blocks: list[Block] = [*summary(self.sentence())]
        if self.comparisons:
            rows = [
                [each.name, each.verdict, each.look, str(each.seeds), each.difference, each.interval, each.outlook]
                for each in self.comparisons
            ]
            header = ["comparison", "verdict", "look", "seeds", "difference", "repeated interval", "outlook"]
            blocks.append(Table(header, rows, "Comparisons", words=True))
        if self.ahead:
            costs = [[each.name, *_numbers(each)] for each in self.ahead]
            note = (
                "Runs are stages that take device time. Their time is the mean of finished runs of the same task, or "
                "the forecast of a training. Smallest: all comparisons end at the next look. Expected: the observed "
                "differences and variances are the true ones. Largest: no comparison ends before the last look."
            )
            blocks.append(Table(["forecast", "runs", "device-hours", "cost"], costs, "What the study may take", note))
        return blocks


def _numbers(ahead: CostForecast) -> list[str]:
    if ahead.stages is None:
        return ["known after the first look", NONE, NONE]
    more = f" and {ahead.unknown} runs of unknown time" if ahead.unknown else ""
    hours = "?" if ahead.device_hours is None else f"{ahead.device_hours:.3g}{more}"
    return [f"{ahead.stages}", hours, "?" if ahead.cost is None else f"{ahead.cost:,.2f}"]
