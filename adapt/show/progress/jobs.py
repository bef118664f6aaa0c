"""The jobs of a cluster that do some work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapt.show.blocks import Table


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


def jobs_table(jobs: Sequence[ShownJob]) -> Table:
    """A row for each job, the oldest first."""
    rows = [
        [job.name, job.part, job.status, job.times.get("began", ""), job.times.get("took", ""), job.message[:200]]
        for job in jobs
    ]
    return Table(["job", "does", "status", "began", "took", "what Ray says"], rows, words=True)
