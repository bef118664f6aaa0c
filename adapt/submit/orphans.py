"""Jobs that Ray lists as running although the node that drove them is gone: a head that came back knows no better."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

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
