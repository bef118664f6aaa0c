"""Submits work as one job, or each stage as a job: checked first, never twice, and begun again after bad luck."""

import json
import re
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from adapt.chain.chain_nodes import Node
from adapt.submit.cluster_jobs import Follower, JobCluster, ended, is_bad_luck, of_order
from adapt.submit.submit_order import DIGEST, Order
from adapt.support import errors
from adapt.support.errors import AdaptError, ClusterError, ConfigError, StageError
from adapt.terminal.console import log

if TYPE_CHECKING:
    from ray.job_submission import JobDetails


_RAYS_OWN = re.compile(r"INFO job_manager\.py|^Running entrypoint for job")
_MESSAGE = re.compile(r"^(\w+): (.*)\n  fix: (.*)$", re.MULTILINE)


def check(cluster: JobCluster, order: Order) -> dict[str, Any]:
    """Looks on the cluster whether the work can be done there; see `adapt.submit.cluster_check`.

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


_LOOK_S = 2.0
_SAID_AFTER_S = 15.0


@dataclass
class StagesProgress:
    """How far the stages of a chain are, by their labels."""

    ready: deque[str] = field(default_factory=deque)
    """Those whose inputs are finished, and that have not been started."""
    running: dict[str, str] = field(default_factory=dict)
    """The names of their jobs."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why."""
    begun: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    """Why each waits, as it was said last."""
    since: dict[str, float] = field(default_factory=dict)


def command_of(order: Order, node: Node) -> list[str]:
    """What a stage's job is to run: the chain, kept to this one stage."""
    own = {"stage": node.name, **node.values}
    kept: list[str] = []
    rest = list(order.arguments)
    while rest:
        word = rest.pop(0)
        if word == "--only":
            rest.pop(0)
        elif not word.startswith("--only="):
            kept.append(word)
    return [*kept, *(f"--only={name}={member}" for name, member in own.items())]


def run_as_jobs(
    cluster: JobCluster, order: Order, at_once: int, again: bool = False, wait: Callable[[float], None] = time.sleep
) -> dict[str, int]:
    """Starts a job for each stage of a chain when what it needs is finished, and waits for all of them.

    Jobs that work already, or have ended well, are those of an earlier run of this, and are not started again. A stage
    that fails leaves out those that need it, and no others.

    Args:
        cluster: whose jobs they are.
        order: the chain.
        at_once: jobs that may live at a time.
        again: whether jobs that have ended well are begun anew.
        wait: for so many seconds.

    Returns:
        How many stages are finished, and how many jobs were begun.

    Raises:
        StageError: some failed, or were left out.
    """
    graph = TopologicalSorter({label: node.needed for label, node in order.nodes.items()})
    graph.prepare()
    progress, done = StagesProgress(), 0
    try:
        while True:
            progress.ready += graph.get_ready()
            while progress.ready and len(progress.running) < at_once:
                _start(cluster, order, progress, progress.ready.popleft(), again)
            _say_room(progress, at_once)
            if not progress.running:
                break
            for label in _ended(cluster, order, progress):
                graph.done(label)
                done += 1
            wait(_LOOK_S)
    except KeyboardInterrupt:
        for name in progress.running.values():
            cluster.client.stop_job(name)
        raise
    _raise_failed(order.nodes, progress, done)
    return {"finished": done, "begun": progress.begun.total()}


def _start(cluster: JobCluster, order: Order, progress: StagesProgress, label: str, again: bool) -> None:
    before = of_order(order, cluster.jobs(order.name), label)
    goes_on = before and not before[-1].status.is_terminal()
    is_done = before and before[-1].status == "SUCCEEDED" and not again
    progress.since[label] = time.monotonic()
    if goes_on or is_done:
        progress.running[label] = str(before[-1].submission_id)
        return
    name = order.submission(len(before) + 1, label)
    cluster.start(order.narrowed(command_of(order, order.nodes[label])), name, order.metadata(label))
    progress.running[label] = name
    progress.begun[label] += 1
    log(f"{label}: started as {name}")


def _ended(cluster: JobCluster, order: Order, progress: StagesProgress) -> list[str]:
    """The stages that have ended well since the last look; those that were lost are begun again."""
    known = {each.submission_id: each for each in cluster.jobs(order.name)}
    finished = []
    for label, name in list(progress.running.items()):
        job = known.get(name)
        if job and not job.status.is_terminal():
            _say_pending(progress, label, job.message if job.status == "PENDING" else None)
            continue
        del progress.running[label]
        if job and job.status == "SUCCEEDED":
            log(f"{label}: finished")
            finished.append(label)
        elif (job is None or is_bad_luck(job)) and progress.begun[label] <= cluster.retries:
            log(f"{label}: {name} was lost ({job.message if job else 'it is not known any more'}); beginning again")
            progress.ready.appendleft(label)
        else:
            why = (job.message if job else None) or "its job is not known any more"
            progress.failed[label] = why
            log(f"{label}: failed: {why}")
    return finished


def _say_pending(progress: StagesProgress, label: str, message: str | None) -> None:
    late = time.monotonic() - progress.since[label] > _SAID_AFTER_S
    if message and late and progress.said.get(label) != message:
        progress.said[label] = message
        log(f"{label} waits: {message}")


def _say_room(progress: StagesProgress, at_once: int) -> None:
    for label in progress.ready:
        message = f"{at_once} jobs live already (resources.stages_at_once)"
        if progress.said.get(label) != message:
            progress.said[label] = message
            log(f"{label} waits: {message}")


def _raise_failed(nodes: Mapping[str, Node], progress: StagesProgress, done: int) -> None:
    if not progress.failed:
        return
    left = len(nodes) - done - len(progress.failed)
    first, why = next(iter(progress.failed.items()))
    also = f", and {left} that need them were left out" if left else ""
    raise StageError(
        f"{len(progress.failed)} stages failed{also}; the first: {first}: {why}",
        "see its log (`jobs/chain.py logs FILE STAGE`), mend that, and submit again: what is finished stays",
    )
