"""The jobs of a cluster that do some work, what goes along with them, and how one is followed until its end."""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from adapt.ray.runtime import hush
from adapt.submit.package import STOP_WAIT_S
from adapt.submit.submit_order import NAME, PART, Order
from adapt.support import errors
from adapt.support.errors import AdaptError, ClusterError
from adapt.support.redact import has_password
from adapt.terminal.console import duration, log
from adapt.terminal.streams import is_unread

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient


ADDRESS = "RAY_API_SERVER_ADDRESS"
"""The variable that names a cluster's dashboard, as for `ray job`."""
_PATIENCE_S = 5.0


def address_from(given: str | None) -> str:
    """The address of the dashboard that takes jobs: what is given, else what the environment says.

    Raises:
        ClusterError: there is none, or it is no address of a dashboard.
    """
    ray_address = os.environ.get("RAY_ADDRESS", "")
    address = given or os.environ.get(ADDRESS) or (ray_address if "://" in ray_address else "")
    how = "give the dashboard's, such as --address http://127.0.0.1:8265"
    if not address:
        raise ClusterError("no cluster is named", f"{how}, or set {ADDRESS}; `ray dashboard FILE` opens a tunnel to it")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise ClusterError(f"{address} is not the address of a cluster's dashboard", how)
    if has_password(address):
        raise ClusterError("the address holds a password, which process lists show", f"leave it out: {_TOKEN}")
    return address.rstrip("/")


_TOKEN = "export RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token (or RAY_AUTH_TOKEN_PATH)"


def connected(address: str) -> "JobSubmissionClient":
    """A client for the jobs of the cluster at an address.

    Raises:
        ClusterError: nobody answers, the token is missing or wrong, or the versions of Ray differ.
    """
    _check_answers(address)
    import ray
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    from adapt.ray.private import send_in_silence, version_at

    hush()
    for name in ("dashboard_sdk", "job.sdk"):  # they tell of each package and each end of a log
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
    send_in_silence()
    try:
        client = JobSubmissionClient(address)
        there = version_at(client)
    except AuthenticationError as error:
        raise ClusterError(f"the cluster at {address} does not let us in: {_first(error)}", _TOKEN) from error
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        what = f"what answers at {address} is no Ray dashboard: {_first(error)}"
        raise ClusterError(what, "name the address of the cluster's dashboard, usually port 8265") from error
    if there != ray.__version__:
        raise ClusterError(
            f"Ray is {ray.__version__} here and {there} on the cluster",
            f"use one version on both sides: pip install 'ray[default]=={there}' here, or renew the cluster's image",
        )
    return client


def _check_answers(address: str) -> None:
    """Ray's own client waits without end for a host that is not there."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_PATIENCE_S).close()
    except OSError as error:
        raise ClusterError(
            f"no cluster answers at {address}: {error}",
            "see that it runs and that the tunnel to its dashboard is open (`ray dashboard`), or correct --address",
        ) from error


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


ORPHANED = "the node on which it drove itself is gone"
_MOST_NODES = 10_000


def listed_jobs(client: "JobSubmissionClient") -> "list[JobDetails]":
    """The jobs of a cluster, those without a driver as failed (see ORPHANED)."""
    jobs = client.list_jobs()
    if not any(job.status == "RUNNING" and job.driver_node_id for job in jobs):
        return jobs
    gone = dead_nodes(client.get_address())
    return [_failed(job) if job.status == "RUNNING" and job.driver_node_id in gone else job for job in jobs]


def dead_nodes(address: str) -> set[str]:
    """The ids of the nodes that a cluster knows to be gone.

    Args:
        address: of its dashboard.

    Raises:
        ConnectionError: the dashboard does not answer, or not yet.
    """
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    dead: Any = [("state", "=", "DEAD")]
    try:
        found = list_nodes(address=address, filters=dead, limit=_MOST_NODES, raise_on_missing_output=False)
    except RayStateApiException as error:
        raise ConnectionError(str(error)) from error
    return {node.node_id for node in found}


def is_orphaned(job: "JobDetails") -> bool:
    """Whether `listed` found that its node is gone, and with it what it said last."""
    return job.message == ORPHANED


def _failed(job: "JobDetails") -> "JobDetails":
    from ray.job_submission import JobStatus

    failed: JobDetails = job.model_copy(update={"status": JobStatus.FAILED, "message": ORPHANED})
    return failed


LASTING = {each.exit_code for each in vars(errors).values() if isinstance(each, type) and issubclass(each, AdaptError)}
LASTING = (LASTING | {70}) - {ClusterError.exit_code}
"""Exit codes that say that the same command would end the same way."""
DRIVERS_SHARE = 0.001
"""What a job takes of the resource that marks such nodes: so little that as many as anybody has find room."""


@dataclass(frozen=True)
class JobCluster:
    """Where work goes, and what goes with it."""

    client: "JobSubmissionClient"
    environment: dict[str, Any]
    """What each job takes along; see `adapt.submit.package`."""
    retries: int = 2
    """How often work that ended by bad luck (a lost node, a killed process) begins again."""
    drive_on: str | None = None
    """A resource of the nodes on which work drives itself; None for the head."""

    def jobs(self, name: str) -> "list[JobDetails]":
        """The jobs of a chain or job of this name, the oldest first."""
        found = [each for each in listed_jobs(self.client) if (each.metadata or {}).get(NAME) == name]
        return sorted(found, key=lambda each: each.start_time or 0)

    def start(self, entrypoint: str, submission: str, metadata: dict[str, str]) -> None:
        """Starts a job, unless somebody else has just done so."""
        where: Any = {"entrypoint_resources": {self.drive_on: DRIVERS_SHARE}} if self.drive_on else {}
        try:
            self.client.submit_job(
                entrypoint=entrypoint,
                submission_id=submission,
                runtime_env=self.environment,
                metadata=metadata,
                **where,
            )
        except RuntimeError as error:
            if "already exists" not in str(error):
                raise ClusterError(f"the cluster takes no job: {error}", "see its dashboard, then try again") from error


def of_order(order: Order, jobs: "Iterable[JobDetails]", part: str = "") -> "list[JobDetails]":
    """The jobs that did this very work."""
    wanted = order.metadata(part)
    return [each for each in jobs if {name: (each.metadata or {}).get(name) for name in wanted} == wanted]


def is_bad_luck(job: "JobDetails") -> bool:
    """Whether the same command may well end otherwise: nobody stopped it, and no error of ours ended it."""
    return job.status == "FAILED" and (job.driver_exit_code is None or job.driver_exit_code not in LASTING)


def ended(job: "JobDetails") -> "JobDetails":
    """The job, if it has ended well.

    Raises:
        AdaptError: it was stopped, or has failed, as its log says.
    """
    if job.status == "SUCCEEDED":
        return job
    if job.status == "STOPPED":
        raise ClusterError(f"{job.submission_id} was stopped", "submit it again to go on: what is finished stays")
    error = ClusterError(f"{job.submission_id} has failed: {job.message}", "its log says why; mend that, submit again")
    if job.driver_exit_code:
        error.exit_code = job.driver_exit_code
    raise error


def stop(cluster: JobCluster, name: str) -> list[str]:
    """Stops all jobs of a name, those that start others first, and waits for their end.

    Returns:
        The names of the jobs.

    Raises:
        ClusterError: one does not end.
    """
    running = [each for each in cluster.jobs(name) if not each.status.is_terminal()]
    for job in sorted(running, key=lambda each: bool((each.metadata or {}).get(PART))):
        log(f"stopping {job.submission_id}")
        cluster.client.stop_job(str(job.submission_id))
    began = time.monotonic()
    while left := [each for each in cluster.jobs(name) if not each.status.is_terminal()]:
        waited = time.monotonic() - began
        if waited > STOP_WAIT_S + 30:
            pending = all(each.status == "PENDING" for each in left)
            why = "they have not started, and Ray ends none before" if pending else "their nodes may be gone"
            raise ClusterError(
                f"{', '.join(str(each.submission_id) for each in left)} still live after {duration(waited)}: {why}",
                "give the same command again once they have started" if pending else "see the cluster's dashboard",
            )
        for job in left:
            if job.status == "RUNNING" and waited > 5:
                cluster.client.stop_job(str(job.submission_id))  # one that had not started did not hear the first
        time.sleep(1)
    return [str(each.submission_id) for each in running]


PATIENCE_S = 3600.0
"""How long a lost connection is looked for again [s]."""
_SAID_AFTER_S = 30.0
_AGAIN_S = 1.0, 30.0


def show_log(text: str) -> None:
    """What the job has said, as it has said it."""
    sys.stderr.write(text)  # it never fails: see adapt.terminal.streams
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
