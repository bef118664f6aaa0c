"""Starts a cluster on this machine, submits the demo to it, kills a node, and stops the cluster: `make cluster`."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapt.model.demo_checkpoint import NAME, demo_checkpoint
from adapt.support.errors import Interrupted
from adapt.terminal.console import finish, run_job
from cluster.here.demonstrations import grow_and_shrink, lose_a_node, restart_the_head
from cluster.here.submission import Story

Demonstration = Callable[[Path, Path, Story], dict[str, Any]]
"""Function that runs a demonstration and returns the metrics of its jobs.

Its arguments are a folder, the demo's model, and the `Story` that records events.
"""


def main() -> None:
    """Reads the command line and runs the chosen demonstration."""
    parser = argparse.ArgumentParser(prog="python -m cluster.here", description=__doc__)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--restart-head",
        action="store_true",
        help="kill the head node during a training run, and restart it with its state",
    )
    kinds.add_argument(
        "--autoscale", action="store_true", help="run two jobs on nodes that Ray's autoscaler starts and stops"
    )
    given = parser.parse_args()
    show: Demonstration = lose_a_node
    show = restart_the_head if given.restart_head else grow_and_shrink if given.autoscale else show
    story = Story()
    try:
        with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
            found = show(Path(folder), demo_checkpoint(NAME), story)
    except KeyboardInterrupt:
        raise Interrupted(
            "the demonstration was interrupted, and its cluster was stopped", "run the command again"
        ) from None
    story.retell()
    finish("cluster", "", found)


if __name__ == "__main__":
    run_job(main)
