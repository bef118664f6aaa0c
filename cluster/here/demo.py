"""The demo on a cluster of three nodes, of which one is lost while the model trains."""

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from cluster.here.story import Story, told_cluster
from cluster.here.submission import Submission, submitted
from cluster.here.training import Reports, exported

STEPS, INTERVAL = 60, 10
NODE_CPUS = 3
"""Cores that a node says it has, whatever the machine has. A worker takes all but one, which is left for readers."""


def arguments(folder: Path, model: Path, workers: str, *further: str, steps: int = STEPS) -> list[str]:
    """What `jobs/chain.py submit` is given: the demo with less text and few steps, each with a report.

    Args:
        folder: for the text, and as `runs` for the results.
        model: the demo's checkpoint, by its place: jobs on a cluster keep their cache elsewhere.
        workers: `resources.workers`.
        further: arguments.
        steps: of the training.
    """
    where = [f"--storage.root={folder / 'runs'}", f"--model.path={model}"]
    read = ["--corpus.source=files", "--corpus.packages=[]", f"--corpus.paths={text_in(folder)}"]
    length = [f"--training.max_steps={steps}", "--training.global_batch_size=16", "--training.log_interval_steps=1"]
    saved = [f"--training.checkpoint_interval_steps={INTERVAL}"]
    places = [f"--resources.workers={workers}", f"--resources.cpus_per_worker={NODE_CPUS - 1}"]
    return ["--job", "dapt", "--config", "jobs/recipes/demo.yaml", *where, *read, *length, *saved, *places, *further]


def text_in(folder: Path) -> Path:
    """A file with the paragraphs of Python's own reference, written once."""
    file = folder / "text.jsonl"
    if not file.exists():
        paragraphs = (" ".join(part.split()) for topic in topics.values() for part in topic.split("\n\n"))
        file.write_text("".join(json.dumps({"text": paragraph}) + "\n" for paragraph in paragraphs))
    return file


def lose_a_node(folder: Path, model: Path, story: Story) -> dict[str, Any]:
    """Submits the demo for one or two workers, and ends the node of one of them.

    Returns:
        The metrics of the job.
    """
    with told_cluster(story, folder) as cluster:
        cluster.start_head()
        cluster.add(NODE_CPUS)
        lost = cluster.add(NODE_CPUS)
        story.tell(f"a head and two nodes of {NODE_CPUS} cores are up; jobs go to {cluster.dashboard}, with a token")
        command = [*arguments(folder, model, "[1,2]"), "--address", cluster.dashboard]
        with submitted(command, cluster.environment, "submit") as submission:
            submission.wait(lambda: submission.has_said("with 2 of 1 to 2 workers"), "two workers train")
            story.tell("two workers start, one on each node")
            reports = train_until(submission, folder / "runs", INTERVAL + 2, story)
            resumed, said = reports.beginning_again(), len(submission.said)
            lost.lose()
            story.tell(
                f"all processes of node {lost.number} ({lost.host}) were killed after step {reports.steps()[-1]}"
            )
            submission.wait(lambda: submission.has_said("with 1 of 1 to 2 workers", said), "one worker trains")
            submission.wait(resumed, "the training goes on")
            story.tell(f"the training goes on with one worker, from the checkpoint of step {resumed()}")
            submission.end()
        tell_end(found := exported(folder / "runs"), story)
    return found


def train_until(submission: Submission, root: Path, steps: int, story: Story) -> Reports:
    """Waits until a training has made so many steps.

    Returns:
        Its reports.
    """
    reports = Reports(root)
    submission.wait(lambda: len(reports.steps()) >= steps, f"{steps} steps are made")
    story.tell(f"the job trains; {reports.steps()[-1]} steps are made")
    return reports


def tell_end(found: dict[str, Any], story: Story) -> None:
    """Says what the record of the model says."""
    losses = found["losses"]["domain"]
    before, after = losses["before"]["value"], losses["after"]["value"]
    story.tell(f"the job has ended well: held-out loss {before:.2f} before, {after:.2f} after")
