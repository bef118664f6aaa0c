"""What a job would run, why, and what it takes."""

from dataclasses import dataclass
from typing import Any

from adapt.job.job import Job
from adapt.runner import plan_stages
from adapt.runner.run import Planned, check_ahead, unfinished
from adapt.show.blocks import Block, Table, TextBlock
from adapt.show.pages import render_notebook
from adapt.show.progress.goals import trainings_table
from adapt.show.terminal import render_text
from adapt.stage.context import Context
from adapt.stage.train import Train


@dataclass(frozen=True)
class Plan:
    """The stages of a job in the order in which they run. `print(plan)` shows them."""

    job: str
    stages: list[Planned]
    trainings: dict[str, Any]
    """What each training that is to run takes, by its name: an `adapt.train.capacity.forecast.Forecast`; None where its
    text must be prepared first."""

    @property
    def to_run(self) -> list[Planned]:
        """The stages that are not finished."""
        return [line for line in self.stages if not line.record]

    def blocks(self) -> list[Block]:
        """A row for each stage, and what the trainings take."""
        blocks: list[Block] = [plan_table(self.stages)]
        if len(self.trainings) > 1:
            rows = [
                (name, of.tokens, of.device_hours, of.cost) if of else (name, None, None, None)
                for name, of in self.trainings.items()
            ]
            blocks += [table for table in [trainings_table(rows)] if table]
        for name, forecast in self.trainings.items() if len(self.trainings) == 1 else ():
            if forecast:
                lines = [[figure, text] for figure, text in forecast.lines().items()]
                blocks.append(Table(["figure", "forecast"], lines, f"The training {name}", words=True))
        finished = len(self.stages) - len(self.to_run)
        return [*blocks, TextBlock(f"{finished} of {len(self.stages)} stages are finished")]

    def __str__(self) -> str:
        return render_text(self.blocks())

    def _repr_html_(self) -> str:
        return render_notebook(self.blocks())


def plan_table(stages: list[Planned]) -> Table:
    """A row for each stage: whether it is to run, its folder, and why."""
    rows = [
        [line.stage.kind, "done" if line.record else "run", f"{line.folder.parent.name}/{line.folder.name}", _why(line)]
        for line in stages
    ]
    return Table(["stage", "state", "folder", "because"], rows, words=True)


def _why(line: Planned) -> str:
    """Why a stage is to run; empty where it is finished."""
    if line.record:
        return ""
    if not line.nearest:
        return "first of its kind"
    return "\n".join([*line.changed, f"(against {line.nearest.path.name})"])


def plan_of(job: Job, context: Context) -> Plan:
    """Looks ahead; nothing runs.

    Raises:
        AdaptError: as the job would raise before anything runs.
    """
    final = job.final(context)
    stages = plan_stages(final, context.store)
    context.digests.save()
    check_ahead(unfinished([final], context.store)[0], context.store)
    records = {line.stage.key: line.record for line in stages if line.record}
    waiting = [line.stage for line in stages if isinstance(line.stage, Train) and not line.record]
    return Plan(job.name, stages, {stage.name: stage.forecast(records) for stage in waiting})
