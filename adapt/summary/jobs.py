"""The jobs of a cluster that do some work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapt.summary.tables import show


@dataclass(frozen=True)
class ShownJob:
    """A job, as people are told of it."""

    name: str
    part: str
    """What it does: the label of a stage, or `all`."""
    status: str
    times: Mapping[str, str]
    """When it `began`, and how long it `took`; empty before it has begun."""
    message: str
    """Why it waits, or how it ended."""


def show_jobs(jobs: Sequence[ShownJob]) -> None:
    """A row a job, the oldest first."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("job", "does", "status", "began", "took", "what Ray says"):
        table.add_column(column, overflow="fold")
    for job in jobs:
        times = job.times.get("began", ""), job.times.get("took", "")
        table.add_row(Text(job.name), Text(job.part), job.status, *times, Text(job.message[:200]))
    show(table)
