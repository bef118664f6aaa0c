"""Stage `scores`: what a model scores on a task, over all seeds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adapt.better import Less, More
from adapt.console import duration
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import TRANSDUCTIVE, Block, Table, TextBlock, in_points, interval
from adapt.stage.finetune import Finetune
from adapt.statistics.seeds import Spread, spread


@dataclass(frozen=True)
class Scored:
    """Scores of all seeds; none is left out, whatever it came to."""

    metric: str
    mode: str
    majority_score: float
    """Score of always answering the most frequent class of train."""
    transductive: bool
    scores: dict[str, float]
    """The score of each seed."""
    mean: More[float]
    deviation: Less[float | None]
    low: More[float | None]
    high: More[float | None]
    """See `adapt.statistics.seeds.Spread`."""
    seeds: int
    degenerate: Less[int]
    """Seeds whose model predicts one class only."""
    without_leaks: Spread | None
    """Over the test examples whose text does not stand in train, where there are others."""

    def blocks(self, record: Record) -> list[Block]:
        """Every seed's score, mean, deviation and interval."""
        header = ["mean", "deviation", "95% interval", "seeds", "always the most frequent class"]
        scores = "  ".join(in_points(score) for score in self.scores.values())
        own = Spread(self.mean, self.deviation, self.low, self.high, self.seeds)
        rows = [[*_cells(own), scores, in_points(self.majority_score)]]
        if self.without_leaks:
            rows.append([*_cells(self.without_leaks), "without test texts that are also in train", ""])
        title = f"{record.name}: {self.mode}, test {self.metric} in points{TRANSDUCTIVE if self.transductive else ''}"
        blocks: list[Block] = [Table(header, rows, title)]
        if self.degenerate:
            blocks.append(
                TextBlock(f"{self.degenerate} of {self.seeds} seeds predict one class only; they are counted in")
            )
        return [*blocks, TextBlock(f"{duration(record.cost['device_seconds'])} of device time")]


def _cells(of: Spread) -> list[str]:
    ends = interval(None if of.low is None else 100 * of.low, None if of.high is None else 100 * of.high, ".1f")
    return [in_points(of.mean), in_points(of.deviation), ends]


@dataclass(frozen=True, eq=False)
class Scores(Stage[Scored]):
    """Mean, deviation and interval of the scores of several seeds."""

    kind = "scores"

    name: str
    runs: Mapping[str, Finetune]
    """The runs, by their seeds."""

    def what(self) -> Mapping[str, Any]:
        """Nothing but the runs determines the result."""
        return {}

    def needs(self) -> Mapping[str, float]:
        """It takes nothing of the cluster."""
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[Scored]:
        """Sums up."""
        finished = [done[run] for run in self.runs.values()]
        runs = [each.result for each in finished]
        clean = [run.score_without_leaks for run in runs if run.score_without_leaks is not None]
        scored = Scored(
            metric=runs[0].metric,
            mode=runs[0].mode,
            majority_score=runs[0].majority_score,
            transductive=runs[0].transductive,
            scores={str(run.seed): run.score for run in runs},
            **asdict(spread([run.score for run in runs])),
            degenerate=sum(run.degenerate for run in runs),
            without_leaks=spread(clean) if clean else None,
        )
        seconds = sum(each.record.cost["device_seconds"] for each in finished)
        return Outcome(scored, {"device_seconds": seconds, "device_hours": seconds / 3600})
