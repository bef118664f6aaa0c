"""Two jobs, submitted side by side to a cluster that has no nodes for them yet: Ray's autoscaler brings some."""

import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from cluster.here.autoscaler import IDLE_S, environment, head_arguments
from cluster.here.demo import NODE_CPUS, arguments
from cluster.here.nodes import Nodes
from cluster.here.story import Story, told_cluster
from cluster.here.submission import Submission, submitted
from cluster.here.training import exported

MOST_NODES = 3
NAMES = "one", "two"
_LOOK_S = 0.5
_GONE_S = 180.0


def grow_and_shrink(folder: Path, model: Path, story: Story) -> dict[str, Any]:
    """Submits two trainings to a cluster without workers, and waits until both have ended and all nodes are gone.

    Returns:
        The metrics of each job by its name.
    """
    with told_cluster(story, folder, environment()) as cluster, ExitStack() as stack:
        cluster.start_head(*head_arguments(folder, cluster.address, NODE_CPUS, MOST_NODES))
        story.tell(f"the head is up, with Ray's autoscaler and {cluster.nodes_alive() - 1} nodes beside it")
        submissions = {name: stack.enter_context(_job(cluster, folder, model, name)) for name in NAMES}
        most = _watch(cluster, submissions, story)
        for submission in submissions.values():
            submission.end()
        found = {name: exported(folder / "runs", name) for name in NAMES}
        story.tell(f"both jobs have ended well, on {most} nodes at most")
        began = time.monotonic()
        while (left := cluster.nodes_alive() - 1) and time.monotonic() - began < _GONE_S:
            time.sleep(_LOOK_S)
        story.tell(f"{left} nodes are left {time.monotonic() - began:.0f} s later (idle ones go after {IDLE_S:g} s)")
    return found


def _job(cluster: Nodes, folder: Path, model: Path, name: str) -> AbstractContextManager[Submission]:
    own = ["--name", name, "--seed", str(NAMES.index(name)), "--address", cluster.dashboard]
    return submitted(arguments(folder, model, "1", *own), cluster.environment, name)


def _watch(cluster: Nodes, submissions: dict[str, Submission], story: Story) -> int:
    """Tells of nodes and trainings that come and go until both submissions are over.

    Returns:
        The most nodes that there were.
    """
    before, most, trains = 0, 0, set[str]()
    while not all(each.is_over for each in submissions.values()):
        if (now := cluster.nodes_alive() - 1) != before:
            story.tell(f"{now} nodes are up" if now != 1 else "1 node is up")
            before, most = now, max(most, now)
        for name, each in submissions.items():
            if name not in trains and each.has_said("step 1/"):
                trains.add(name)
                story.tell(f"job {name} trains")
        time.sleep(_LOOK_S)
    return most
