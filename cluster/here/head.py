"""The demo on a cluster whose head is lost while the model trains, and starts again with its state."""

import time
from pathlib import Path
from typing import Any

from cluster.here.demo import INTERVAL, NODE_CPUS, arguments, tell_end, train_until
from cluster.here.story import Story, told_cluster
from cluster.here.submission import submitted
from cluster.here.training import exported

DRIVER = "driver"
"""The resource of the node on which the job drives itself."""
STEPS = 200
"""Some of them are made while the head is away, and some when it is back."""
AWAY_S = 5.0


def kept_in(folder: Path) -> dict[str, str]:
    """What the environment of a head says that keeps its state in a folder, in place of its memory alone."""
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}


def restart_the_head(folder: Path, model: Path, story: Story) -> dict[str, Any]:
    """Submits the demo to drive itself on a node, ends the head while it trains, and starts the head again.

    Returns:
        The metrics of the job.
    """
    with told_cluster(story, folder, kept_in(folder / "state")) as cluster:
        head = cluster.start_head()
        cluster.add(NODE_CPUS, "--resources", f'{{"{DRIVER}": 1}}')
        story.tell(f"a head that keeps its state and a node of {NODE_CPUS} cores are up")
        where = ["--address", cluster.dashboard, "--drive-on", DRIVER]
        with submitted(arguments(folder, model, "1", *where, steps=STEPS), cluster.environment, "submit") as submission:
            reports = train_until(submission, folder / "runs", INTERVAL + 2, story)
            head.lose()
            story.tell(f"all processes of the head were killed after step {(before := reports.steps()[-1])}")
            time.sleep(AWAY_S)
            away = reports.steps()[-1]
            story.tell(f"meanwhile the training has come to step {away} of {STEPS}")
            head.start()
            story.tell(f"the head is up again, with its state; the training is at step {reports.steps()[-1]}")
            submission.end()
        tell_end(found := exported(folder / "runs"), story)
    return {**found, "steps_without_head": away - before}
