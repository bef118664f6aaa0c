"""Connects to a cluster's dashboard, starts, lists and stops jobs, and follows a job until its end."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import ray
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient
from ray.util.state import list_nodes
from ray.util.state.exception import RayStateApiException

from adapt.ray.private import send_in_silence, version_at
from adapt.ray.runtime import hush
from adapt.submit import cluster_check, submit_order
from adapt.support import errors, redact
from adapt.support.errors import AdaptError, ClusterError
from adapt.terminal.console import duration, is_unread, log

ADDRESS = "RAY_API_SERVER_ADDRESS"
"""Environment variable with the address of a cluster's dashboard. The command `ray job` uses it too."""
_PATIENCE_S = 5.0
_ATTEMPTS = 3
LOST = (requests.exceptions.RequestException, aiohttp.ClientError, OSError, RuntimeError, TimeoutError)
"""Exceptions that are raised if a cluster does not answer, or if a connection breaks."""


def address_from(given: str | None) -> str:
    """Returns the address of the cluster's dashboard: the argument, or else the address in the environment."""
    ray_address = os.environ.get("RAY_ADDRESS", "")
    address = given or os.environ.get(ADDRESS) or (ray_address if "://" in ray_address else "")
    how = "give the address of the dashboard, such as --address http://127.0.0.1:8265"
    if not address:
        raise ClusterError("no cluster is named", f"{how}, or set {ADDRESS}; `ray dashboard FILE` opens a tunnel to it")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise ClusterError(f"{address} is not the address of a cluster's dashboard", how)
    if redact.has_password(address):
        raise ClusterError(
            "the address has a password, which process lists show", f"use a token instead of the password: {_TOKEN}"
        )
    return address.rstrip("/")


_TOKEN = "export RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token (or RAY_AUTH_TOKEN_PATH)"


def connected(address: str) -> JobSubmissionClient:
    """Creates a client for the jobs of the cluster at an address.

    Raises:
        ClusterError: the cluster does not answer, the token is missing or wrong, the cluster asks for no token, or the
            versions of Ray differ.
    """
    status = _status_without_token(address)
    hush()
    for name in ("dashboard_sdk", "job.sdk"):  # hides Ray's messages on packages and ended logs
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.WARNING)
    send_in_silence()
    try:
        client = JobSubmissionClient(address)
        there = version_at(client)
    except AuthenticationError as error:
        raise ClusterError(f"the cluster at {address} refuses access: {_first(error)}", _TOKEN) from error
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        what = f"the server at {address} is not a Ray dashboard: {_first(error)}"
        raise ClusterError(what, "name the address of the cluster's dashboard, usually port 8265") from error
    if there != ray.__version__:
        raise ClusterError(
            f"Ray is {ray.__version__} here and {there} on the cluster",
            f"use one version on both sides: pip install 'ray[default]=={there}' here, or update the cluster's image",
        )
    _refuse_open(address, status)
    return client


def _status_without_token(address: str) -> int:
    """Returns the HTTP status of the dashboard's answer to a request without a token. Repeats it while it is busy.

    Ray's own client would wait forever for a host that does not exist.
    """
    status = 0
    for _ in range(_ATTEMPTS):
        try:
            status = requests.get(f"{address}/api/jobs/", timeout=_PATIENCE_S, allow_redirects=False).status_code
        except requests.exceptions.ReadTimeout:
            continue
        except (requests.exceptions.RequestException, ValueError) as error:
            raise ClusterError(
                f"no cluster answers at {address}: {_first(error)}",
                "check that the cluster is running and that the tunnel to its dashboard is open (`ray dashboard`), or"
                " correct --address",
            ) from error
        if status < 500:
            return status
    if not status:
        what = f"the server at {address} did not answer {_ATTEMPTS} requests within {_PATIENCE_S:g} s each"
        raise ClusterError(what, "repeat the command when the cluster's head is less busy, or correct --address")
    return status


def _refuse_open(address: str, status: int) -> None:
    """Refuses a cluster that may list its jobs without a token, unless the user has set RAY_AUTH_MODE to `disabled`.

    Args:
        address: address of the dashboard.
        status: HTTP status of the dashboard's answer to a request without a token.
    """
    if os.environ.get("RAY_AUTH_MODE") == "disabled" or status in (401, 403):
        return
    unclear = f"may not require a token (it answers a request without a token with HTTP status {status})"
    raise ClusterError(
        f"the cluster at {address} {'does not require a token' if status == 200 else unclear}, so anyone who can reach"
        " its ports can run code on it",
        "start Ray with RAY_AUTH_MODE=token; or, if only trusted users reach it, export RAY_AUTH_MODE=disabled",
    )


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


ORPHANED = "the node that ran the job is gone"
_MOST_NODES = 10_000


def listed_jobs(client: JobSubmissionClient) -> list[JobDetails]:
    """Lists the jobs of a cluster. A running job whose node is gone is listed as failed, with the message ORPHANED."""
    jobs = client.list_jobs()
    if not any(job.status == "RUNNING" and job.driver_node_id for job in jobs):
        return jobs
    gone = dead_nodes(client.get_address())
    return [_failed(job) if job.status == "RUNNING" and job.driver_node_id in gone else job for job in jobs]


def dead_nodes(address: str) -> set[str]:
    """Returns the ids of a cluster's dead nodes.

    Raises:
        ConnectionError: the dashboard does not answer.
    """
    dead: Any = [("state", "=", "DEAD")]
    try:
        found = list_nodes(address=address, filters=dead, limit=_MOST_NODES, raise_on_missing_output=False)
    except RayStateApiException as error:
        raise ConnectionError(str(error)) from error
    return {node.node_id for node in found}


def is_orphaned(job: JobDetails) -> bool:
    """Returns whether the node of a job is gone according to `listed_jobs`. If so, the end of the job's log is lost."""
    return job.message == ORPHANED


def _failed(job: JobDetails) -> JobDetails:
    failed: JobDetails = job.model_copy(update={"status": JobStatus.FAILED, "message": ORPHANED})
    return failed


PATIENCE_S = 3600.0
"""Time for which we try to restore a lost connection [s]."""
_AGAIN_S = 1.0, 30.0
T = TypeVar("T")


@dataclass
class Patience:
    """Waits before each new attempt to reach a cluster that does not answer, up to a limit."""

    limit_s: float = PATIENCE_S
    """Time after which a lost connection is an error [s]."""
    lost_at: float | None = None
    """Time at which the connection was lost. None if the connection is not lost."""
    again_s: float = _AGAIN_S[0]
    """Time until the next attempt to connect [s]."""

    def end(self) -> None:
        """Ends the wait, because the cluster has answered."""
        if self.lost_at is not None:
            log("the cluster answers again")
        self.lost_at, self.again_s = None, _AGAIN_S[0]

    def wait(self, error: BaseException) -> None:
        """Waits until the next attempt.

        Args:
            error: error of the last attempt.

        Raises:
            ClusterError: the cluster has not answered for `limit_s`.
        """
        now = time.monotonic()
        if self.lost_at is None:
            self.lost_at = now
            what = f"the connection to the cluster is lost ({type(error).__name__})"
            log(f"{what}; its jobs continue, trying to reconnect")
        if now - self.lost_at > self.limit_s:
            raise ClusterError(
                f"the cluster has not answered for {duration(now - self.lost_at)}",
                "open the tunnel to its dashboard again, then repeat the command to continue following the job",
            ) from error
        time.sleep(self.again_s)
        self.again_s = min(self.again_s * 2, _AGAIN_S[1])


def patiently(request: Callable[[], T], lost: tuple[type[Exception], ...] = LOST) -> T:
    """Returns the cluster's answer to a request. The request is repeated while the connection is lost.

    Args:
        request: function that sends the request. It may be sent again although the cluster has received it.
        lost: exceptions that mean that the connection is lost.

    Raises:
        ClusterError: the cluster has not answered for PATIENCE_S.
    """
    patience = Patience()
    while True:
        try:
            answer = request()
        except lost as error:
            patience.wait(error)
        else:
            patience.end()
            return answer


LASTING = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdaptError)}
LASTING = (LASTING | {70}) - {ClusterError.exit_code}
"""Exit codes of permanent failures, which would recur if the same command were run again."""
DRIVERS_SHARE = 0.001
"""Amount of the `--drive-on` resource that each job reserves.

It is so small that it never limits the number of jobs.
"""


@dataclass(frozen=True)
class JobCluster:
    """A cluster that jobs are submitted to, and the settings of these jobs."""

    client: JobSubmissionClient
    environment: dict[str, Any]
    """Runtime environment of each job; see `adapt.submit.cluster_check`."""
    retries: int = 2
    """Number of retries after a possibly temporary failure, such as a lost node or a killed process."""
    drive_on: str | None = None
    """Ray resource of the nodes that run the entry points of jobs. None means the head node."""

    def jobs(self, name: str) -> list[JobDetails]:
        """Lists the jobs of the chain or job with this name, oldest first."""
        jobs = patiently(lambda: listed_jobs(self.client))
        of_name = [job for job in jobs if (job.metadata or {}).get(submit_order.NAME) == name]
        return sorted(of_name, key=lambda job: job.start_time or 0)

    def start(self, entrypoint: str, submission: str, metadata: dict[str, str]) -> None:
        """Starts a job, unless a job with this submission id exists already.

        If the connection is lost, the request is repeated. This cannot start the job twice, because Ray refuses
        an existing submission id.
        """
        where: Any = {"entrypoint_resources": {self.drive_on: DRIVERS_SHARE}} if self.drive_on else {}

        def request() -> None:
            self.client.submit_job(
                entrypoint=entrypoint,
                submission_id=submission,
                runtime_env=self.environment,
                metadata=metadata,
                **where,
            )

        try:
            # other OSErrors than those of requests come from files of the working directory
            patiently(request, (requests.exceptions.RequestException,))
        except RuntimeError as error:
            if "already exists" not in str(error):
                raise ClusterError(
                    f"the cluster did not accept the job: {error}", "see its dashboard, then try again"
                ) from error


def of_order(order: submit_order.Order, jobs: Iterable[JobDetails], part: str = "") -> list[JobDetails]:
    """Returns the jobs for an order: jobs with its name and configuration and, if `part` is set, for this stage."""
    metadata = order.metadata(part)
    return [job for job in jobs if {name: (job.metadata or {}).get(name) for name in metadata} == metadata]


def is_bad_luck(job: JobDetails) -> bool:
    """Returns whether a retry of a job may succeed: the job failed, and its exit code is not in LASTING."""
    return job.status == "FAILED" and (job.driver_exit_code is None or job.driver_exit_code not in LASTING)


def ended(job: JobDetails) -> JobDetails:
    """Returns the ended job if it has succeeded. Otherwise raises its error."""
    if job.status == "SUCCEEDED":
        return job
    if job.status == "STOPPED":
        raise ClusterError(f"{job.submission_id} was stopped", "submit it again to continue: finished stages are kept")
    error = ClusterError(
        f"{job.submission_id} has failed: {job.message}", "fix the cause, which the job's log shows, and submit again"
    )
    if job.driver_exit_code:
        error.exit_code = job.driver_exit_code
    raise error


def stop(cluster: JobCluster, name: str) -> list[str]:
    """Stops all jobs of the chain or job with a name, and waits until they have ended.

    Jobs that start other jobs are stopped first.

    Returns:
        Submission ids of the stopped jobs.
    """
    running = [job for job in cluster.jobs(name) if not job.status.is_terminal()]
    for job in sorted(running, key=lambda job: bool((job.metadata or {}).get(submit_order.PART))):
        log(f"stopping {job.submission_id}")
        cluster.client.stop_job(str(job.submission_id))
    began = time.monotonic()
    while left := [job for job in cluster.jobs(name) if not job.status.is_terminal()]:
        waited = time.monotonic() - began
        if waited > cluster_check.STOP_WAIT_S + 30:
            pending = all(job.status == "PENDING" for job in left)
            why = "Ray cannot stop jobs that have not started" if pending else "their nodes may be gone"
            raise ClusterError(
                f"{', '.join(str(job.submission_id) for job in left)} did not end within {duration(waited)}: {why}",
                "repeat the command when the jobs have started" if pending else "see the cluster's dashboard",
            )
        for job in left:
            if job.status == "RUNNING" and waited > 5:
                # stops the job again, because the job may have started only after the first attempt
                cluster.client.stop_job(str(job.submission_id))
        time.sleep(1)
    return [str(job.submission_id) for job in running]


_SAID_AFTER_S = 30.0


def show_log(text: str) -> None:
    """Writes text of a job's log to stderr, unchanged."""
    sys.stderr.write(text)  # never raises an error: see adapt.terminal.console
    sys.stderr.flush()


class Unread(Exception):
    """Raised if the program that reads stderr has closed the stream."""


def show_while_read(text: str) -> None:
    """Writes text of a job's log to stderr.

    Raises:
        Unread: the program that reads stderr has closed the stream, as `head` does in `2>&1 | head`.
    """
    show_log(text)
    if is_unread():
        raise Unread


@dataclass
class Follower:
    """Shows a job's log until the job ends, even if the connection to the cluster is lost in between."""

    client: JobSubmissionClient
    job: str
    """Submission id of the job."""
    shown: Callable[[str], None] = show_log
    """Function that is called with new text of the log."""
    characters: int = 0
    """Number of characters of the log that have been shown."""
    patience: Patience = field(default_factory=Patience)

    def until_end(self) -> JobDetails | None:
        """Waits for the end of the job, and shows its log.

        Returns:
            The job. None if the cluster does not know the job any more, for example after a restart.

        Raises:
            ClusterError: the cluster has not answered for `patience.limit_s`.
        """
        began, said = time.monotonic(), ""
        while True:
            try:
                known = {job.submission_id: job for job in listed_jobs(self.client)}
                job = known.get(self.job)
                if job is None or is_orphaned(job):
                    self.patience.end()
                    return job
                if job.status == "PENDING":
                    self.patience.end()
                    waits = time.monotonic() - began > _SAID_AFTER_S
                    if waits and job.message and job.message != said:
                        said = job.message
                        log(f"{self.job} waits: {said}")
                    time.sleep(_AGAIN_S[0])
                    continue
                if job.status.is_terminal():
                    self._rest(job)
                    self.patience.end()
                    return job
                asyncio.run(self._tail())
                time.sleep(0.1)  # waits for the job's final status, which Ray sets a moment after the log ends
            except LOST as error:
                self.patience.wait(error)

    async def _tail(self) -> None:
        """Shows new text of the log. After a reconnection, Ray sends the log from its beginning."""
        position = 0
        async for text in self.client.tail_job_logs(self.job):
            self.patience.end()
            position += len(text)
            self._show(text, position)

    def _rest(self, job: JobDetails) -> None:
        """Shows the rest of the log, because a lost connection may look like the end of the log.

        The log is on the node that ran the job. If this node is gone, the rest of the log is lost.
        """
        if job.driver_node_id and job.driver_node_id in dead_nodes(self.client.get_address()):
            log(f"the end of the log of {self.job} may be missing, because the node that ran the job is gone")
            return
        text = self.client.get_job_logs(self.job)
        self._show(text, len(text))

    def _show(self, text: str, position: int) -> None:
        if position > self.characters:
            self.shown(text[-(position - self.characters) :])
            self.characters = position
