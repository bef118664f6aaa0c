"""Jobs of a cluster: found by whose they are, started once, ended, and told apart by how they ended."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapt import errors
from adapt.console import duration, log
from adapt.errors import AdaptError, ClusterError
from adapt.submit.order import NAME, PART, Order
from adapt.submit.orphans import listed_jobs
from adapt.submit.package import STOP_WAIT_S

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

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
