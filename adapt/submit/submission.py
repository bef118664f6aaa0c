"""Submits a chain or job as one cluster job, or each stage as a separate cluster job.

The work is checked first, and is never submitted twice. If a node or process is lost, the job is submitted again.
"""

import json
import re
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

from ray.job_submission import JobDetails

from adapt.chain.chain_nodes import Node
from adapt.submit.cluster_jobs import Follower, JobCluster, ended, is_bad_luck, of_order
from adapt.submit.submit_order import DIGEST, Order
from adapt.support import errors
from adapt.support.errors import AdaptError, ClusterError, ConfigError, StageError
from adapt.terminal.console import log

_RAYS_OWN = re.compile(r"INFO job_manager\.py|^Running entrypoint for job")
_MESSAGE = re.compile(r"^(\w+): (.*)\n  fix: (.*)$", re.MULTILINE)


def check(cluster: JobCluster, order: Order) -> dict[str, Any]:
    """Checks on the cluster that the work can run there; see `adapt.submit.cluster_check`.

    Returns:
        JSON object in the last line of the check's output: a path and metrics.

    Raises:
        AdaptError: the check failed on the cluster.
    """
    log("checking storage, files, models and resources on the cluster")
    command = order.command("check", *driver_options(cluster.drive_on))
    said = run_small(replace(cluster, drive_on=None), command, f"dontstop-check-{order.digest[:12]}")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (there := said["metrics"]["python"]) != here:
        raise ClusterError(
            f"Python is {here} here and {there} on the cluster", f"submit with Python {there}: make env PYTHON=…"
        )
    return said


def driver_options(resource: str | None) -> list[str]:
    """Returns the `--drive-on` argument. The list is empty if the work runs on the head."""
    return [f"--drive-on={resource}"] if resource else []


def run_small(cluster: JobCluster, entrypoint: str, name: str, shows: bool = True) -> dict[str, Any]:
    """Runs a short command as a job on the cluster, and then deletes the job from the cluster's list of jobs.

    Returns:
        JSON object in the last line of the command's output.

    Raises:
        AdaptError: the command failed. If the command raised an AdaptError, this error is raised here.
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
            f"the output of {entrypoint} does not end with a line of JSON: {last}", "check that the code is complete"
        ) from error


def _as_ours(text: str, job: JobDetails) -> AdaptError:
    """Converts the output of a failed command on the cluster to one of our own errors."""
    for name, what, fix in reversed(_MESSAGE.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AdaptError):
            return kind(f"on the cluster: {what}", fix)
    tail = " | ".join(text.strip().splitlines()[-3:]) or job.message or "it printed nothing"
    return ClusterError(
        f"the command failed on the cluster: {tail}",
        "its nodes need this project's packages (cluster/Dockerfile, `make env`), and `python` must be that one",
    )


def submit(cluster: JobCluster, order: Order, again: bool = False) -> JobDetails:
    """Submits work to a cluster and follows it until its end. Work that is already running is only followed.

    Args:
        cluster: cluster that runs the work.
        order: work to submit.
        again: whether to run the work again if it has succeeded before.

    Returns:
        The job that succeeded.

    Raises:
        AdaptError: the work cannot run on the cluster, or has failed.
    """
    jobs = cluster.jobs(order.name)
    refuse_other(order, jobs)
    before = of_order(order, jobs)
    last = before[-1] if before else None
    if last and last.status == "SUCCEEDED" and not again:
        log(f"{last.submission_id} has succeeded, so no job is started (--again: run again what has changed since)")
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
        "look for lost nodes in the cluster's dashboard; then give the same command: finished stages are kept",
    )


def _begin(cluster: JobCluster, order: Order, attempt: int) -> str:
    """Starts a job, and returns its submission id."""
    name = order.submission(attempt)
    cluster.start(order.entrypoint, name, order.metadata())
    log(f"submitted {name}; ctrl-C ends following it, not the job")
    return name


def refuse_other(order: Order, jobs: Iterable[JobDetails]) -> None:
    """Refuses a name under which other work is running, because jobs are found by this name.

    Raises:
        ConfigError: other work is running under this name. The message names the job.
    """
    for job in jobs:
        if not job.status.is_terminal() and (job.metadata or {}).get(DIGEST) != order.digest:
            raise ConfigError(
                f"{order.name} is running with another configuration, as {job.submission_id}",
                "give this one another name, undo the change to follow that one, or end that one with"
                f" `ray job stop {job.submission_id}`",
            )


_LOOK_S = 2.0
_SAID_AFTER_S = 15.0


@dataclass
class StagesProgress:
    """State of the stages of a chain, keyed by the labels of the stages."""

    ready: deque[str] = field(default_factory=deque)
    """Labels of stages that have not been started, and whose inputs are finished."""
    running: dict[str, str] = field(default_factory=dict)
    """Submission ids of the jobs of running stages, keyed by label."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons of the failures of stages, keyed by label."""
    begun: Counter[str] = field(default_factory=Counter)
    """Number of jobs that were started for each stage, keyed by label."""
    said: dict[str, str] = field(default_factory=dict)
    """Reason that was logged last for each waiting stage, keyed by label."""
    since: dict[str, float] = field(default_factory=dict)
    """Time at which the last job of each stage was started, keyed by label."""


def command_of(order: Order, node: Node) -> list[str]:
    """Returns the arguments of a stage's job: the arguments of the chain, limited to this stage."""
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
    """Starts a job for each stage of a chain as soon as its inputs are finished, and waits for all jobs.

    Jobs of an earlier call that are running or have succeeded are not started again. If a stage fails, only the stages
    that depend on it are left out.

    Args:
        cluster: cluster that runs the jobs.
        order: chain to run.
        at_once: largest number of jobs at the same time.
        again: whether to run jobs again that have succeeded before.
        wait: function that waits for a number of seconds.

    Returns:
        Number of finished stages, and number of started jobs.

    Raises:
        StageError: stages have failed.
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
    """Returns the labels of the stages that have succeeded since the last call. Schedules lost stages again."""
    known = {job.submission_id: job for job in cluster.jobs(order.name)}
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
            log(f"{label}: {name} was lost ({job.message if job else 'the cluster forgot it'}); starting it again")
            progress.ready.appendleft(label)
        else:
            why = (job.message if job else None) or "the cluster does not know its job any more"
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
        message = f"{at_once} jobs are running, the largest number (resources.stages_at_once)"
        if progress.said.get(label) != message:
            progress.said[label] = message
            log(f"{label} waits: {message}")


def _raise_failed(nodes: Mapping[str, Node], progress: StagesProgress, done: int) -> None:
    if not progress.failed:
        return
    left = len(nodes) - done - len(progress.failed)
    first, why = next(iter(progress.failed.items()))
    also = f", and {left} that depend on them were left out" if left else ""
    raise StageError(
        f"{len(progress.failed)} stages failed{also}; the first: {first}: {why}",
        "see its log (`jobs/chain.py logs FILE STAGE`), fix that, and submit again: finished stages are kept",
    )
