"""Commands of `dontstop chain` on clusters: submit, status, logs, stop, check and stages."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from ray.job_submission import JobSubmissionClient

from adapt.chain.chain_stages import ahead
from adapt.job.job_run import ON_A_CLUSTER
from adapt.ray.runtime import connect
from adapt.runner.mirror import mirror_at
from adapt.runner.stage import everything
from adapt.show.blocks import Table
from adapt.show.terminal import show_blocks
from adapt.stage.context import root_of
from adapt.stage.preflight import check_absolute, check_memory
from adapt.stage.train import Train
from adapt.submit.cluster_check import (
    check_bucket,
    check_driver,
    check_environment,
    check_places,
    check_storage,
    cluster_findings,
)
from adapt.submit.cluster_jobs import Follower, JobCluster, Unread, address_from, connected, show_while_read, stop
from adapt.submit.package import check_no_secrets, check_size, inside, runtime_environment, working_directory
from adapt.submit.submission import driver_options, run_as_jobs, run_small, submit
from adapt.submit.submit_order import PART, ClusterCommand, Order, chain_of, order_of
from adapt.support.errors import ConfigError
from adapt.terminal.console import duration, finish, log


def run_cluster_command(asked: ClusterCommand) -> None:
    """Runs a cluster command of jobs/chain.py.

    Raises:
        AdaptError: the command cannot be carried out. All checks are made before any work starts.
    """
    verbs: dict[str, Callable[[ClusterCommand, Order], None]] = {
        "submit": _submit,
        "status": _status,
        "logs": _logs,
        "stop": _stop,
        "check": _check,
        "stages": _stages,
    }
    check_no_secrets(asked.rest)
    away = asked.verb in ("submit", "status", "logs", "stop")
    verbs[asked.verb](asked, order_of(inside(asked.rest, working_directory()) if away else asked.rest))


def _cluster(asked: ClusterCommand) -> JobCluster:
    """Checks the size of the working directory, and connects to the cluster."""
    environment = runtime_environment(working_directory())
    check_size(environment)
    return JobCluster(connected(address_from(asked.address)), environment, asked.retries, asked.drive_on)


def _submit(asked: ClusterCommand, order: Order) -> None:
    if "job-per-stage" in asked.switches and order.job:
        raise ConfigError("--job-per-stage is for chain files", "leave it out, because a single job runs as one job")
    if "job-per-stage" in asked.switches and any(node.is_search for node in order.nodes.values()):
        raise ConfigError("--job-per-stage needs to know all stages, and this chain has searches", "leave it out")
    if "job-per-stage" in asked.switches and order.rounds:
        raise ConfigError("--job-per-stage needs to know all stages, and this study is sequential", "leave it out")
    for config in order.configs:
        check_absolute(config)
    if "job-per-stage" in asked.switches:
        again = ("--again",) if "again" in asked.switches else ()
        order = replace(
            order, verb="stages", further=(f"--retries={asked.retries}", *again, *driver_options(asked.drive_on))
        )
    job = submit(_cluster(asked), order, "again" in asked.switches)
    finish("submit", str(job.submission_id), {"status": str(job.status.value), **_times(job)})


def _status(asked: ClusterCommand, order: Order) -> None:
    cluster = _cluster(asked)
    jobs = cluster.jobs(order.name)
    rows = []
    for job in jobs:
        part, times = (job.metadata or {}).get(PART) or "all", _times(job)
        cells = [part, str(job.status.value).lower(), times.get("began", ""), times.get("took", "")]
        rows.append([str(job.submission_id), *cells, (job.message or "")[:200]])
    show_blocks([Table(["job", "part", "status", "began", "took", "Ray's message"], rows, words=True)])
    follow = ["--follow"] if "follow" in asked.switches else []
    said = run_small(cluster, order.command("status", *follow), f"dontstop-status-{order.digest[:12]}")
    finish("status", said["path"], {**said["metrics"], "jobs": len(jobs)})


def _logs(asked: ClusterCommand, order: Order) -> None:
    cluster = _cluster(asked)
    if asked.stage:
        said = run_small(cluster, order.command("logs", f"--stage={asked.stage}"), f"dontstop-logs-{order.digest[:12]}")
        finish("logs", said["path"], said["metrics"])
        return
    jobs = cluster.jobs(order.name)
    if not jobs:
        raise ConfigError(f"{order.name} has not been submitted", "use `submit` instead of `logs`")
    last = [job for job in jobs if not (job.metadata or {}).get(PART)][-1]
    with suppress(Unread):
        Follower(cluster.client, str(last.submission_id), show_while_read).until_end()
    finish("logs", str(last.submission_id), _times(last))


def _stop(asked: ClusterCommand, order: Order) -> None:
    stopped = stop(_cluster(asked), order.name)
    if not stopped:
        log(f"no job of {order.name} is running")
    finish("stop", order.name, {"stopped": len(stopped)})


def _check(asked: ClusterCommand, order: Order) -> None:
    """Checks storage, nodes, credentials and memory. The command runs on the cluster."""
    first = order.configs[0]
    connect(first.resources)
    root = root_of(first)
    nodes = check_bucket(root) if mirror_at(root) else check_storage(root)
    check_places(order.configs)
    if asked.drive_on:
        check_driver(asked.drive_on)
    check_environment(order.configs)
    chain = chain_of(order)
    looked_at = []
    for stage in everything(goal.stage for goal in chain.goals):
        if isinstance(stage, Train):
            model, config = stage.start.pretrained.model, stage.config
            if (settings := (model, config.training, config.resources, config.objective)) not in looked_at:
                looked_at.append(settings)
                check_memory(config, model)
    finish("check", chain.store.root, cluster_findings(nodes, ahead(chain)))


def _stages(asked: ClusterCommand, order: Order) -> None:
    """Starts a job for each stage, with the runtime environment of this job.

    The command runs as a job on the cluster.
    """
    client = JobSubmissionClient()
    cluster = JobCluster(client, {}, asked.retries, asked.drive_on)
    own = [job for job in cluster.jobs(order.name) if not job.status.is_terminal()]
    environment = next((job.runtime_env for job in own if not (job.metadata or {}).get(PART)), None)
    most = order.configs[0].resources.stages_at_once or ON_A_CLUSTER
    counts = run_as_jobs(replace(cluster, environment=environment or {}), order, most, "again" in asked.switches)
    finish("stages", root_of(order.configs[0]), counts)


def _times(job: object) -> dict[str, str]:
    """Returns the start and the duration of a job, up to now if it has not ended."""
    began, ended = getattr(job, "start_time", None), getattr(job, "end_time", None)
    if not began:
        return {}
    since = datetime.fromtimestamp(began / 1000, UTC).isoformat(timespec="seconds")
    last = ended / 1000 if ended else datetime.now(UTC).timestamp()
    return {"began": since, "took": duration(max(0.0, last - began / 1000))}
