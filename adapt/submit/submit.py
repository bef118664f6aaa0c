"""Submits work as a job that drives itself: checked first, never twice, followed, and begun again after bad luck."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from adapt.console import log
from adapt.errors import ClusterError, ConfigError
from adapt.submit.follow import Follower
from adapt.submit.jobs import JobCluster, ended, is_bad_luck, of_order
from adapt.submit.order import DIGEST, Order
from adapt.submit.small import check

if TYPE_CHECKING:
    from ray.job_submission import JobDetails


def submit(cluster: JobCluster, order: Order, again: bool = False) -> "JobDetails":
    """Brings work to its end on a cluster, or goes on following it where it has been submitted before.

    Args:
        cluster: that does it.
        order: the work.
        again: whether work that has ended well begins anew.

    Returns:
        The job that did it.

    Raises:
        AdaptError: it cannot be done, or has failed.
    """
    jobs = cluster.jobs(order.name)
    refuse_other(order, jobs)
    before = of_order(order, jobs)
    last = before[-1] if before else None
    if last and last.status == "SUCCEEDED" and not again:
        log(f"{last.submission_id} has ended well, so nothing is started (--again: look for what has changed since)")
        return last
    if last and not last.status.is_terminal():
        log(f"following {last.submission_id}, which was submitted before")
        attempt = str(last.submission_id)
    else:
        check(cluster, order)
        attempt = _begin(cluster, order, len(before) + 1)
    for left in range(cluster.retries, -1, -1):
        job = Follower(cluster.client, attempt).until_end()
        if job and not is_bad_luck(job):
            return ended(job)
        why = (job.message if job else None) or "the cluster does not know it any more"
        log(f"{attempt} was lost: {why}")
        if left:
            attempt = _begin(cluster, order, len(of_order(order, cluster.jobs(order.name))) + 1)
    raise ClusterError(
        f"{order.name} was lost {cluster.retries + 1} times; the last time: {why}",
        "see the cluster's dashboard for nodes that ended; then give the same command: what is finished stays",
    )


def _begin(cluster: JobCluster, order: Order, attempt: int) -> str:
    """Starts a job, and gives back its name."""
    name = order.submission(attempt)
    cluster.start(order.entrypoint, name, order.metadata())
    log(f"submitted {name}; ctrl-C ends following it, not the job")
    return name


def refuse_other(order: Order, jobs: "Iterable[JobDetails]") -> None:
    """Refuses a name under which other work is being done: both would be taken for one.

    Raises:
        ConfigError: names the job.
    """
    for job in jobs:
        if not job.status.is_terminal() and (job.metadata or {}).get(DIGEST) != order.digest:
            raise ConfigError(
                f"{order.name} is being done with another configuration, as {job.submission_id}",
                "give this one another name, undo the change to follow that one, or end that one with"
                f" `ray job stop {job.submission_id}`",
            )
