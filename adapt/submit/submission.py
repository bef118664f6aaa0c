"""Implements the cluster commands of `dontstop chain`: submit, status, logs, stop, check and stages.

A chain or job is submitted as one cluster job, or each of its stages as a separate cluster job. Chains and
jobs are checked before submission. If a chain or job is already running, it is not submitted again: the command only
shows its log. If a node or process is lost, the cluster job is submitted again.
"""

import json
import re
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from typing import Any

from ray.job_submission import JobDetails, JobSubmissionClient

from adapt.chain import chain_nodes, chain_stages
from adapt.job.job_run import ON_A_CLUSTER
from adapt.ray.runtime import connect
from adapt.runner.mirror import mirror_at
from adapt.runner.stage import everything
from adapt.show import blocks, renderers
from adapt.stage import context, preflight
from adapt.stage.train import Train
from adapt.submit import cluster_check, cluster_jobs
from adapt.submit.submit_order import DIGEST, PART, ClusterCommand, Order, chain_of, order_of
from adapt.support import errors
from adapt.support.errors import AdaptError, ClusterError, ConfigError, StageError
from adapt.terminal.console import duration, finish, is_unread, log

_RAYS_OWN = re.compile(r"INFO job_manager\.py|^Running entrypoint for job")
_MESSAGE = re.compile(r"^(\w+): (.*)\n  fix: (.*)$", re.MULTILINE)


def check(cluster: cluster_jobs.JobCluster, order: Order) -> dict[str, Any]:
    """Runs a job that checks whether the cluster can run the order; see `adapt.submit.cluster_check`.

    Returns:
        JSON object in the last line of the check's output: a path and metrics.
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
    """Returns the `--drive-on` argument. The list is empty if entry points run on the head node."""
    return [f"--drive-on={resource}"] if resource else []


def run_small(cluster: cluster_jobs.JobCluster, entrypoint: str, name: str) -> dict[str, Any]:
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
        job = cluster_jobs.Follower(cluster.client, submission, text.append).until_end()
    except KeyboardInterrupt:
        cluster.client.stop_job(submission)
        raise
    if job is None:
        raise ClusterError(f"the cluster no longer knows the job {submission}", "repeat the command")
    whole = "".join(text)
    with suppress(*cluster_jobs.LOST):  # the list of jobs then contains this job until Ray removes it
        cluster.client.delete_job(submission)
    if job.status != "SUCCEEDED":
        raise _as_ours(whole, job)
    *lines, last = whole.rstrip("\n").splitlines() or [""]
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
    """Converts the output of a command that failed on the cluster to an `AdaptError`."""
    for name, what, fix in reversed(_MESSAGE.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, AdaptError):
            return kind(f"on the cluster: {what}", fix)
    tail = " | ".join(text.strip().splitlines()[-3:]) or job.message or "it printed nothing"
    return ClusterError(
        f"the command failed on the cluster: {tail}",
        "install this project's packages on the nodes (cluster/Dockerfile, `make env`), so that `python` finds them",
    )


def submit(cluster: cluster_jobs.JobCluster, order: Order, again: bool = False) -> JobDetails:
    """Submits a chain or job to a cluster and follows it until its end. If it is already running, it is only followed.

    Args:
        cluster: cluster to run on.
        order: chain or job to submit.
        again: whether to run the chain or job again if it has succeeded before.

    Returns:
        The job that succeeded.
    """
    jobs = cluster.jobs(order.name)
    refuse_other(order, jobs)
    before = cluster_jobs.of_order(order, jobs)
    last = before[-1] if before else None
    if last and last.status == "SUCCEEDED" and not again:
        log(f"{last.submission_id} has succeeded, so no job is started (use --again to run what has changed since)")
        return last
    if last and not last.status.is_terminal():
        log(f"following {last.submission_id}, which was submitted before")
        attempt = str(last.submission_id)
    else:
        check(cluster, order)
        attempt = _begin(cluster, order, before)
    for left in range(cluster.retries, -1, -1):
        job = cluster_jobs.Follower(cluster.client, attempt).until_end()
        if job and not cluster_jobs.is_bad_luck(job):
            return cluster_jobs.ended(job)
        why = (job.message if job else None) or "the cluster no longer knows the job"
        log(f"{attempt} was lost: {why}")
        if left:
            attempt = _begin(cluster, order, cluster_jobs.of_order(order, cluster.jobs(order.name)))
    raise ClusterError(
        f"{order.name} was lost {cluster.retries + 1} times; the last time: {why}",
        "look for lost nodes in the cluster's dashboard; then repeat the command: finished stages are kept",
    )


def _begin(cluster: cluster_jobs.JobCluster, order: Order, before: Iterable[JobDetails]) -> str:
    """Starts the next attempt after earlier jobs of an order, and returns its submission id."""
    name = order.submission(_next_attempt(before))
    cluster.start(order.entrypoint, name, order.metadata())
    log(f"submitted {name}; Ctrl-C stops showing the log, but not the job")
    return name


def _next_attempt(before: Iterable[JobDetails]) -> int:
    """Returns the number of the next attempt: one more than the largest number in the submission ids of earlier jobs.

    The number of earlier jobs may be smaller, because users can delete ended jobs from the cluster's list.
    """
    return 1 + max((int(str(job.submission_id).rpartition("-")[2]) for job in before), default=0)


def refuse_other(order: Order, jobs: Iterable[JobDetails]) -> None:
    """Refuses an order if another chain or job is running under the order's name, because jobs are found by name."""
    for job in jobs:
        if not job.status.is_terminal() and (job.metadata or {}).get(DIGEST) != order.digest:
            raise ConfigError(
                f"{order.name} is running with another configuration, as {job.submission_id}",
                "choose another name, undo the change of the configuration to follow the running job, or stop the"
                f" running job with `ray job stop {job.submission_id}`",
            )


_LOOK_S = 2.0
_SAID_AFTER_S = 15.0


@dataclass
class StagesProgress:
    """Tracks which stages of a chain can start, are running or have failed. Stages are identified by label."""

    ready: deque[str] = field(default_factory=deque)
    """Labels of stages that have not been started, and whose inputs are finished."""
    running: dict[str, str] = field(default_factory=dict)
    """Submission ids of the jobs of running stages, keyed by label."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons of the failures of stages, keyed by label."""
    begun: Counter[str] = field(default_factory=Counter)
    """Number of jobs that were started for each stage, keyed by label."""
    said: dict[str, str] = field(default_factory=dict)
    """Reason for waiting that was last logged for each waiting stage, keyed by label."""
    since: dict[str, float] = field(default_factory=dict)
    """Time at which the last job of each stage was started, keyed by label."""


def command_of(order: Order, node: chain_nodes.Node) -> list[str]:
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
    cluster: cluster_jobs.JobCluster,
    order: Order,
    at_once: int,
    again: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, int]:
    """Starts a job for each stage of a chain as soon as the stage's inputs are finished, and waits for all jobs.

    Jobs of an earlier call that are running or have succeeded are not started again. If a stage fails, only the stages
    that depend on it are left out.

    Args:
        cluster: cluster that runs the jobs.
        order: chain to run.
        at_once: maximum number of jobs that run at the same time.
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


def _start(cluster: cluster_jobs.JobCluster, order: Order, progress: StagesProgress, label: str, again: bool) -> None:
    before = cluster_jobs.of_order(order, cluster.jobs(order.name), label)
    goes_on = before and not before[-1].status.is_terminal()
    is_done = before and before[-1].status == "SUCCEEDED" and not again
    progress.since[label] = time.monotonic()
    if goes_on or is_done:
        progress.running[label] = str(before[-1].submission_id)
        return
    name = order.submission(_next_attempt(before), label)
    cluster.start(order.narrowed(command_of(order, order.nodes[label])), name, order.metadata(label))
    progress.running[label] = name
    progress.begun[label] += 1
    log(f"{label}: started as {name}")


def _ended(cluster: cluster_jobs.JobCluster, order: Order, progress: StagesProgress) -> list[str]:
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
        elif (job is None or cluster_jobs.is_bad_luck(job)) and progress.begun[label] <= cluster.retries:
            lost = job.message if job else "the cluster no longer knows the job"
            log(f"{label}: {name} was lost ({lost}); starting the stage again")
            progress.ready.appendleft(label)
        else:
            why = (job.message if job else None) or "the cluster no longer knows the job"
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
        message = f"{at_once} jobs are running, which is the maximum (resources.stages_at_once)"
        if progress.said.get(label) != message:
            progress.said[label] = message
            log(f"{label} waits: {message}")


def _raise_failed(nodes: Mapping[str, chain_nodes.Node], progress: StagesProgress, done: int) -> None:
    if not progress.failed:
        return
    left = len(nodes) - done - len(progress.failed)
    first, why = next(iter(progress.failed.items()))
    also = f", and {left} that depend on them were left out" if left else ""
    raise StageError(
        f"{len(progress.failed)} stages failed{also}; the first failure: {first}: {why}",
        "fix the cause, which the stage's log shows (`dontstop chain logs FILE STAGE`), and submit again: finished"
        " stages are kept",
    )


def run_cluster_command(asked: ClusterCommand) -> None:
    """Runs a cluster command of jobs/chain.py."""
    verbs: dict[str, Callable[[ClusterCommand, Order], None]] = {
        "submit": _submit,
        "status": _status,
        "logs": _logs,
        "stop": _stop,
        "check": _check,
        "stages": _stages,
    }
    cluster_check.check_no_secrets(asked.rest)
    away = asked.verb in ("submit", "status", "logs", "stop")
    verbs[asked.verb](
        asked, order_of(cluster_check.inside(asked.rest, cluster_check.working_directory()) if away else asked.rest)
    )


def checked_cluster(asked: ClusterCommand) -> cluster_jobs.JobCluster:
    """Checks the size of the working directory, and connects to the cluster."""
    environment = cluster_check.runtime_environment(cluster_check.working_directory())
    cluster_check.check_size(environment)
    return cluster_jobs.JobCluster(
        cluster_jobs.connected(cluster_jobs.address_from(asked.address)), environment, asked.retries, asked.drive_on
    )


def _submit(asked: ClusterCommand, order: Order) -> None:
    if "job-per-stage" in asked.switches and order.job:
        raise ConfigError("--job-per-stage is for chain files", "leave it out, because a single job runs as one job")
    if "job-per-stage" in asked.switches and any(node.is_search for node in order.nodes.values()):
        raise ConfigError(
            "--job-per-stage needs to know all stages in advance, but this chain has searches", "leave it out"
        )
    if "job-per-stage" in asked.switches and order.rounds:
        raise ConfigError(
            "--job-per-stage needs to know all stages in advance, but this study is sequential", "leave it out"
        )
    for config in order.configs:
        preflight.check_absolute(config)
    if "job-per-stage" in asked.switches:
        again = ("--again",) if "again" in asked.switches else ()
        order = replace(
            order, verb="stages", further=(f"--retries={asked.retries}", *again, *driver_options(asked.drive_on))
        )
    job = submit(checked_cluster(asked), order, "again" in asked.switches)
    finish("submit", str(job.submission_id), {"status": str(job.status.value), **_times(job)})


_FOLLOW_S = 10.0
"""Seconds between two updates of `status --follow`, in addition to the time that a command on the cluster takes."""


def _status(asked: ClusterCommand, order: Order) -> None:
    """Shows the jobs and the status of a chain, with --follow until none of its jobs and stages is running.

    If no job was submitted, --follow waits until no stage of the chain is waiting.
    """
    cluster, follows = checked_cluster(asked), "follow" in asked.switches
    while True:
        jobs = cluster.jobs(order.name)
        _show_jobs(jobs)
        said = run_small(cluster, order.command("status"), f"dontstop-status-{order.digest[:12]}")
        counts = said["metrics"]
        runs = counts["running"] or any(not job.status.is_terminal() for job in jobs)
        if not follows or is_unread() or not (runs or (counts["waiting"] and not jobs)):
            break
        time.sleep(_FOLLOW_S)
    if follows and counts["waiting"] and not runs:
        log(f"the status is no longer followed, because no job of {order.name} is running")
    finish("status", said["path"], {**counts, "jobs": len(jobs)})


def _show_jobs(jobs: Iterable[JobDetails]) -> None:
    rows = []
    for job in jobs:
        part, times = (job.metadata or {}).get(PART) or "all", _times(job)
        cells = [part, str(job.status.value).lower(), times.get("began", ""), times.get("took", "")]
        rows.append([str(job.submission_id), *cells, (job.message or "")[:200]])
    renderers.show_blocks([blocks.Table(["job", "part", "status", "began", "took", "Ray's message"], rows, words=True)])


def _logs(asked: ClusterCommand, order: Order) -> None:
    cluster = checked_cluster(asked)
    if asked.stage:
        said = run_small(cluster, order.command("logs", f"--stage={asked.stage}"), f"dontstop-logs-{order.digest[:12]}")
        finish("logs", said["path"], said["metrics"])
        return
    jobs = cluster.jobs(order.name)
    if not jobs:
        raise ConfigError(f"{order.name} has not been submitted", "use `submit` instead of `logs`")
    last = ([job for job in jobs if not (job.metadata or {}).get(PART)] or jobs)[-1]
    with suppress(cluster_jobs.Unread):
        cluster_jobs.Follower(cluster.client, str(last.submission_id), cluster_jobs.show_while_read).until_end()
    finish("logs", str(last.submission_id), _times(last))


def _stop(asked: ClusterCommand, order: Order) -> None:
    stopped = cluster_jobs.stop(checked_cluster(asked), order.name)
    if not stopped:
        log(f"no job of {order.name} is running")
    finish("stop", order.name, {"stopped": len(stopped)})


def _check(asked: ClusterCommand, order: Order) -> None:
    """Checks storage, nodes, credentials and memory. The command runs on the cluster."""
    first = order.configs[0]
    connect(first.resources)
    root = context.root_of(first)
    nodes = cluster_check.check_bucket(root) if mirror_at(root) else cluster_check.check_storage(root)
    cluster_check.check_places(order.configs)
    if asked.drive_on:
        cluster_check.check_driver(asked.drive_on)
    cluster_check.check_environment(order.configs, root)
    chain = chain_of(order)
    looked_at = []
    for stage in everything(goal.stage for goal in chain.goals):
        if isinstance(stage, Train):
            model, config = stage.start.pretrained.model, stage.config
            if (settings := (model, config.training, config.resources, config.objective)) not in looked_at:
                looked_at.append(settings)
                preflight.check_memory(config, model)
    finish("check", chain.store.root, cluster_check.cluster_findings(nodes, chain_stages.ahead(chain)))


def _stages(asked: ClusterCommand, order: Order) -> None:
    """Starts a job for each stage.

    The command itself runs as a job on the cluster. The new jobs get the runtime environment of this job.
    """
    client = JobSubmissionClient()
    cluster = cluster_jobs.JobCluster(client, {}, asked.retries, asked.drive_on)
    own = [job for job in cluster.jobs(order.name) if not job.status.is_terminal()]
    environment = next((job.runtime_env for job in own if not (job.metadata or {}).get(PART)), None)
    most = order.configs[0].resources.stages_at_once or ON_A_CLUSTER
    counts = run_as_jobs(replace(cluster, environment=environment or {}), order, most, "again" in asked.switches)
    finish("stages", context.root_of(order.configs[0]), counts)


def _times(job: object) -> dict[str, str]:
    """Returns the start and the duration of a job, up to now if it has not ended."""
    began, ended = getattr(job, "start_time", None), getattr(job, "end_time", None)
    if not began:
        return {}
    since = datetime.fromtimestamp(began / 1000, UTC).isoformat(timespec="seconds")
    last = ended / 1000 if ended else datetime.now(UTC).timestamp()
    return {"began": since, "took": duration(max(0.0, last - began / 1000))}
