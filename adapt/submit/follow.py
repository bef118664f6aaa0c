"""Follows a job of a cluster: shows its log as it grows, over lost connections, until it has ended."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adapt.console import duration, log
from adapt.errors import ClusterError
from adapt.streams import is_unread
from adapt.submit.orphans import is_orphaned, listed_jobs

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

PATIENCE_S = 3600.0
"""How long a lost connection is looked for again [s]."""
_SAID_AFTER_S = 30.0
_AGAIN_S = 1.0, 30.0


def show_log(text: str) -> None:
    """What the job has said, as it has said it."""
    sys.stderr.write(text)  # it never fails: see adapt.streams
    sys.stderr.flush()


class Unread(Exception):
    """Nobody reads what is shown any more."""


def show_while_read(text: str) -> None:
    """Shows what the job has said.

    Raises:
        Unread: the reader of stderr has gone, as after `| head`.
    """
    show_log(text)
    if is_unread():
        raise Unread


@dataclass
class Follower:
    """How much of a job's log has been shown, and since when its cluster does not answer."""

    client: "JobSubmissionClient"
    job: str
    shown: Callable[[str], None] = show_log
    characters: int = 0
    lost_at: float | None = None
    patience_s: float = PATIENCE_S
    again_s: float = field(default=_AGAIN_S[0])

    def until_end(self) -> "JobDetails | None":
        """Waits for the end of the job.

        Returns:
            The job; None if the cluster, started anew perhaps, does not know it any more.

        Raises:
            ClusterError: the cluster has not answered for so long.
        """
        began, said = time.monotonic(), ""
        while True:
            try:
                known = {each.submission_id: each for each in listed_jobs(self.client)}
                job = known.get(self.job)
                if job is None or is_orphaned(job):
                    self._found()
                    return job
                if job.status == "PENDING":
                    self._found()
                    waits = time.monotonic() - began > _SAID_AFTER_S
                    if waits and job.message and job.message != said:
                        said = job.message
                        log(f"{self.job} waits: {said}")
                    time.sleep(_AGAIN_S[0])
                    continue
                if job.status.is_terminal():
                    self._rest()
                    self._found()
                    return job
                asyncio.run(self._tail())
                time.sleep(0.1)  # the log ends a moment before the status says so
            except _lost() as error:
                self._wait(error)

    async def _tail(self) -> None:
        """Shows what comes. A log that is followed again comes from its beginning."""
        position = 0
        async for text in self.client.tail_job_logs(self.job):
            self._found()
            position += len(text)
            self._show(text, position)

    def _rest(self) -> None:
        """A connection can end as if all had been shown."""
        text = self.client.get_job_logs(self.job)
        self._show(text, len(text))

    def _show(self, text: str, position: int) -> None:
        if position > self.characters:
            self.shown(text[-(position - self.characters) :])
            self.characters = position

    def _found(self) -> None:
        if self.lost_at is not None:
            log("the cluster answers again")
        self.lost_at, self.again_s = None, _AGAIN_S[0]

    def _wait(self, error: BaseException) -> None:
        now = time.monotonic()
        if self.lost_at is None:
            self.lost_at = now
            log(f"the connection is lost ({type(error).__name__}); the work goes on without it, looking for it again")
        if now - self.lost_at > self.patience_s:
            raise ClusterError(
                f"the cluster has not answered for {duration(now - self.lost_at)}",
                "open the tunnel to its dashboard again, then give the same command: it goes on following",
            ) from error
        time.sleep(self.again_s)
        self.again_s = min(self.again_s * 2, _AGAIN_S[1])


def _lost() -> tuple[type[BaseException], ...]:
    """What is raised where a cluster does not answer, or not in full."""
    import aiohttp
    import requests

    return requests.exceptions.RequestException, aiohttp.ClientError, OSError, RuntimeError, TimeoutError
