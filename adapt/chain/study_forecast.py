"""Forecasts the device time and cost of the remaining rounds of a sequential study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from adapt.chain.chain_stages import Goal
from adapt.runner import Stage, Store
from adapt.runner.stage import everything
from adapt.show.progress.study_now import CostForecast
from adapt.stage.budget import hours_of
from adapt.stage.train import Train
from adapt.statistics.seeds import Ending, SeedRounds

if TYPE_CHECKING:
    from adapt.statistics.looks import Outlook

Like = tuple[str, str]
"""What runs of about the same length share: the kind of stage, and the key of their task."""


def _like(stage: Stage[Any]) -> Like:
    task = getattr(stage, "task", None)
    return stage.kind, task.key if isinstance(task, Stage) else ""


@dataclass(frozen=True)
class RemainingTime:
    """The device time of the unfinished stages of a study."""

    hours: Mapping[str, float | None]
    """Device-hours of each unfinished stage that takes device time, keyed by the stage's key. None if unknown."""
    price: float | None
    """Price of a device per hour."""

    @classmethod
    def of(cls, goals: Sequence[Goal], store: Store, price: float | None) -> RemainingTime:
        """Forecasts the unfinished stages that goals need.

        A training has its own forecast. Another stage takes the mean of the finished stages of its kind and task, or
        else of its kind.
        """
        took: dict[Like, list[float]] = {}
        waiting: list[Stage[Any]] = []
        for stage in everything(goal.stage for goal in goals):
            if stage.device_time != "own":
                continue
            record = store.record_of(stage)
            if record is None:
                waiting.append(stage)
            elif (hours := record.cost.get("device_hours")) is not None:
                for like in {_like(stage), (stage.kind, "")}:
                    took.setdefault(like, []).append(float(hours))
        means = {like: fmean(hours) for like, hours in took.items()}
        return cls(
            {
                stage.key: hours_of(stage, store)
                if isinstance(stage, Train)
                else means.get(_like(stage), means.get((stage.kind, "")))
                for stage in waiting
            },
            price,
        )

    def ahead(self, name: str, goals: Sequence[Goal]) -> CostForecast:
        """Sums the unfinished stages that some goals need."""
        keys = [stage.key for stage in everything(goal.stage for goal in goals) if stage.key in self.hours]
        known = [hours for key in keys if (hours := self.hours[key]) is not None]
        total = sum(known) if known or not keys else None
        cost = None if total is None or self.price is None else total * self.price
        return CostForecast(name, len(keys), total, cost, len(keys) - len(known))


def outlook_of(ending: Ending, rounds: SeedRounds) -> Outlook:
    """Forecasts when an open comparison ends."""
    from adapt.statistics.looks import outlook

    looked = ending.looked
    return outlook(ending.seen, rounds, looked.look, looked.margin, looked.recipes - looked.significant)
