"""Runs the demo on a Ray cluster while a node is lost, the head node restarts, or nodes start and stop."""

import json
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from cluster.here.nodes import Nodes
from cluster.here.submission import Reports, Story, Submission, exported, submitted, told_cluster

STEPS, INTERVAL = 60, 10
NODE_CPUS = 3
"""Number of cores that each node declares. A worker takes all cores but one. The last core is for tasks that read
data."""


def arguments(folder: Path, model: Path, workers: str, *further: str, steps: int = STEPS) -> list[str]:
    """Returns the arguments of `dontstop chain submit` for the demo with less text and fewer steps.

    Training writes a report after each step.

    Args:
        folder: folder of the text. Results go to its subfolder `runs`.
        model: folder of the demo's checkpoint. It is passed as a folder, because jobs on a cluster have another cache.
        workers: value of `resources.workers`.
        further: additional arguments.
        steps: number of training steps.
    """
    where = [f"--storage.root={folder / 'runs'}", f"--model.path={model}"]
    read = ["--corpus.source=files", "--corpus.packages=[]", f"--corpus.paths={text_in(folder)}"]
    length = [f"--training.max_steps={steps}", "--training.global_batch_size=16", "--training.log_interval_steps=1"]
    saved = [f"--training.checkpoint_interval_steps={INTERVAL}"]
    places = [f"--resources.workers={workers}", f"--resources.cpus_per_worker={NODE_CPUS - 1}"]
    return ["--job", "dapt", "--config", "jobs/recipes/demo.yaml", *where, *read, *length, *saved, *places, *further]


def text_in(folder: Path) -> Path:
    """Returns the path of a file with the paragraphs of Python's language reference. The first call writes the file."""
    file = folder / "text.jsonl"
    if not file.exists():
        paragraphs = (" ".join(part.split()) for topic in topics.values() for part in topic.split("\n\n"))
        file.write_text("".join(json.dumps({"text": paragraph}) + "\n" for paragraph in paragraphs))
    return file


def lose_a_node(folder: Path, model: Path, story: Story) -> dict[str, Any]:
    """Submits the demo for one or two workers, and kills the node of one worker.

    Returns:
        Metrics of the job.
    """
    with told_cluster(story, folder) as cluster:
        cluster.start_head()
        cluster.add(NODE_CPUS)
        lost = cluster.add(NODE_CPUS)
        story.tell(
            f"a head node and two nodes with {NODE_CPUS} cores each are running; {cluster.dashboard} accepts jobs that"
            " are submitted with the cluster's token"
        )
        command = [*arguments(folder, model, "[1,2]"), "--address", cluster.dashboard]
        with submitted(command, cluster.environment, "submit") as submission:
            submission.wait(lambda: submission.has_said("with 2 workers (allowed: 1 to 2)"), "two workers train")
            story.tell("two workers start, one per node")
            reports = train_until(submission, folder / "runs", INTERVAL + 2, story)
            resumed, said = reports.beginning_again(), len(submission.said)
            lost.lose()
            story.tell(
                f"all processes of node {lost.number} ({lost.host}) were killed after step {reports.steps()[-1]}"
            )
            submission.wait(lambda: submission.has_said("with 1 worker (allowed: 1 to 2)", said), "one worker trains")
            submission.wait(resumed, "the training continues")
            story.tell(f"training continues with one worker from the checkpoint of step {resumed()}")
            submission.end()
        tell_end(found := exported(folder / "runs"), story)
    return found


def train_until(submission: Submission, root: Path, steps: int, story: Story) -> Reports:
    """Waits until a training run has completed a number of steps.

    Returns:
        Reports of the training run.
    """
    reports = Reports(root)
    submission.wait(lambda: len(reports.steps()) >= steps, f"{steps} steps are done")
    story.tell(f"the job trains; {reports.steps()[-1]} steps are done")
    return reports


def tell_end(found: dict[str, Any], story: Story) -> None:
    """Reports the losses before and after training, from the metrics of the exported model."""
    losses = found["losses"]["domain"]
    before, after = losses["before"]["value"], losses["after"]["value"]
    story.tell(f"the job has finished: held-out loss {before:.2f} before, {after:.2f} after")


DRIVER = "driver"
"""Ray resource of the node on which the driver of the job runs."""
STEPS_WITH_HEAD_LOST = 200
"""Number of training steps, large enough that the model still trains when the head node has restarted."""
AWAY_S = 5.0


def kept_in(folder: Path) -> dict[str, str]:
    """Returns environment variables that make a head node store its state in a folder, and load it after a restart."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}


def restart_the_head(folder: Path, model: Path, story: Story) -> dict[str, Any]:
    """Submits the demo with its driver on a worker node, kills the head during training, and restarts the head.

    Returns:
        Metrics of the job.
    """
    with told_cluster(story, folder, kept_in(folder / "state")) as cluster:
        head = cluster.start_head()
        cluster.add(NODE_CPUS, "--resources", f'{{"{DRIVER}": 1}}')
        story.tell(f"a head node that saves its state and a node with {NODE_CPUS} cores are running")
        where = ["--address", cluster.dashboard, "--drive-on", DRIVER]
        with submitted(
            arguments(folder, model, "1", *where, steps=STEPS_WITH_HEAD_LOST), cluster.environment, "submit"
        ) as submission:
            reports = train_until(submission, folder / "runs", INTERVAL + 2, story)
            head.lose()
            story.tell(f"all processes of the head were killed after step {(before := reports.steps()[-1])}")
            time.sleep(AWAY_S)
            away = reports.steps()[-1]
            story.tell(f"without the head, the training has reached step {away} of {STEPS_WITH_HEAD_LOST}")
            head.start()
            story.tell(f"the head runs again with its state; the training is at step {reports.steps()[-1]}")
            submission.end()
        tell_end(found := exported(folder / "runs"), story)
    return {**found, "steps_without_head": away - before}


MOST_NODES = 3
NAMES = "one", "two"
_LOOK_S = 0.5
_GONE_S = 180.0


def grow_and_shrink(folder: Path, model: Path, story: Story) -> dict[str, Any]:
    """Submits two training runs to a cluster without workers, and waits until both are finished and all nodes are gone.

    Returns:
        Metrics of each job, keyed by the name of the job.
    """
    # imported here, because this module loads Ray
    from cluster.here.autoscaler import IDLE_S, environment, head_arguments

    with told_cluster(story, folder, environment()) as cluster, ExitStack() as stack:
        cluster.start_head(*head_arguments(folder, cluster.address, NODE_CPUS, MOST_NODES))
        story.tell(f"the head runs with Ray's autoscaler and {cluster.nodes_alive() - 1} other nodes")
        submissions = {name: stack.enter_context(_job(cluster, folder, model, name)) for name in NAMES}
        most = _watch(cluster, submissions, story)
        for submission in submissions.values():
            submission.end()
        found = {name: exported(folder / "runs", name) for name in NAMES}
        story.tell(f"both jobs have finished, on at most {most} nodes")
        began = time.monotonic()
        while (left := cluster.nodes_alive() - 1) and time.monotonic() - began < _GONE_S:
            time.sleep(_LOOK_S)
        story.tell(f"{left} nodes remain {time.monotonic() - began:.0f} s later (idle nodes stop after {IDLE_S:g} s)")
    return found


def _job(cluster: Nodes, folder: Path, model: Path, name: str) -> AbstractContextManager[Submission]:
    own = ["--name", name, "--seed", str(NAMES.index(name)), "--address", cluster.dashboard]
    return submitted(arguments(folder, model, "1", *own), cluster.environment, name)


def _watch(cluster: Nodes, submissions: dict[str, Submission], story: Story) -> int:
    """Records an event whenever nodes or training runs start or stop, until all submissions have ended.

    Returns:
        Maximum number of nodes that were alive at the same time.
    """
    before, most, trains = 0, 0, set[str]()
    while not all(each.is_over for each in submissions.values()):
        if (now := cluster.nodes_alive() - 1) != before:
            story.tell(f"{now} nodes run" if now != 1 else "1 node runs")
            before, most = now, max(most, now)
        for name, each in submissions.items():
            if name not in trains and each.has_said("step 1/"):
                trains.add(name)
                story.tell(f"job {name} trains")
        time.sleep(_LOOK_S)
    return most
