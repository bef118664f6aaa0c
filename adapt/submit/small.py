"""Commands that take seconds on a cluster, and what they say: above all, whether it can do some work."""

import json
import re
import secrets
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adapt import errors
from adapt.console import log
from adapt.errors import AdaptError, ClusterError
from adapt.submit.follow import Follower
from adapt.submit.jobs import JobCluster
from adapt.submit.order import Order

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

_RAYS_OWN = re.compile(r"INFO job_manager\.py|^Running entrypoint for job")
_MESSAGE = re.compile(r"^(\w+): (.*)\n  fix: (.*)$", re.MULTILINE)


def check(cluster: JobCluster, order: Order) -> dict[str, Any]:
    """Looks on the cluster whether the work can be done there; see `adapt.submit.check`.

    Returns:
        What was found.

    Raises:
        AdaptError: it cannot, as the cluster says.
    """
    log("looking on the cluster at storage, files, models and resources")
    command = order.command("check", *driver_options(cluster.drive_on))
    said = run_small(replace(cluster, drive_on=None), command, f"dontstop-check-{order.digest[:12]}")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (there := said["metrics"]["python"]) != here:
        raise ClusterError(
            f"Python is {here} here and {there} on the cluster", f"submit with Python {there}: make env PYTHON=…"
        )
    return said


def driver_options(resource: str | None) -> list[str]:
    """The argument that says on which nodes work drives itself; none for the head."""
    return [f"--drive-on={resource}"] if resource else []


def run_small(cluster: JobCluster, entrypoint: str, name: str, shows: bool = True) -> dict[str, Any]:
    """Runs a command on the cluster that takes seconds, and leaves nothing of it in the list of jobs.

    Returns:
        What its last line says.

    Raises:
        AdaptError: what the command ended with.
    """
    text: list[str] = []
    submission = f"{name}-{secrets.token_hex(3)}"
    cluster.start(entrypoint, submission, {})
    try:
        job = Follower(cluster.client, submission, text.append).until_end()
    except KeyboardInterrupt:
        cluster.client.stop_job(submission)
        raise
    if job is None:
        raise ClusterError(f"the cluster has forgotten {submission}", "give the same command again")
    whole = "".join(text)
    cluster.client.delete_job(submission)
    if job.status != "SUCCEEDED":
        raise _as_ours(whole, job)
    *lines, last = whole.rstrip("\n").splitlines() or [""]
    if shows:
        for line in lines:
            if not _RAYS_OWN.search(line):
                log(line)
    try:
        return dict(json.loads(last))
    except ValueError as error:
        raise ClusterError(
            f"{entrypoint} said nothing that can be read: {last}", "see that the code is whole"
        ) from error


def _as_ours(text: str, job: "JobDetails") -> AdaptError:
    """The error that a command on the cluster ended with, as if it had been raised here."""
    for name, what, fix in reversed(_MESSAGE.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AdaptError):
            return kind(f"on the cluster: {what}", fix)
    tail = " | ".join(text.strip().splitlines()[-3:]) or job.message or "it said nothing"
    return ClusterError(
        f"the cluster could not look: {tail}",
        "its nodes need this project's packages (cluster/Dockerfile, `make env`), and `python` must be that one",
    )
