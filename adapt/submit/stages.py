"""A chain as jobs of a cluster, one a stage, in the order of their needs and side by side where they have none."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from adapt.chain.expand import Node
from adapt.console import log
from adapt.errors import StageError
from adapt.submit.jobs import JobCluster, is_bad_luck, of_order
from adapt.submit.order import Order

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
