"""Tests that real nodes can join and leave during a training run without changing the loss of any step."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from adapt.train.restarts import RestartLog
from adapt.train.training_run import Progress
from cluster.here.nodes import Nodes
from tests.cluster.metadata import served
from tests.forks.nodes import forked_nodes
from tests.train.elastic_toy import SIZES
from tests.train.toy import Case, build, feed
from tests.train.watched import STEPS, Run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with forked_nodes(tmp_path_factory.mktemp("cluster"), notices_quickly=True) as cluster:
        cluster.start_head()
        cluster.add()
        yield cluster


@pytest.fixture
def started(cluster: Nodes, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(workers: tuple[int, int], interval: int, dies_in_save: bool = False, max_failures: int = 1) -> Run:
        runs.append(Run(cluster, tmp_path, workers, interval, dies_in_save, max_failures))
        return runs[-1]

    yield start
    for run in runs:
        run.stop()


def alone(last: int) -> list[float]:
    """Returns the losses of the first `last` steps of an undisturbed training run on one rank."""
    losses: list[float] = []
    loop = build(Case(0, STEPS, training={"log_interval_steps": 1, "checkpoint_interval_steps": STEPS}, **SIZES))
    batches = feed(0, last, SIZES["global_batch"])
    loop.run(batches, Progress(), lambda metrics: losses.append(metrics["loss"]), lambda progress: None)
    return losses


def test_a_node_that_always_kills_its_rank_is_avoided_and_named(
    cluster: Nodes, started: Callable[..., Run], tmp_path: Path, ranks
) -> None:
    """A node is avoided after two failures. A second node joins between them, and training continues there."""
    run = started((1, 1), 5, max_failures=3)
    run.wait(lambda rows: run.saved())
    bad = run.rows()[-1]["node"]
    for failure in range(2):
        before = len(run.rows())
        (tmp_path / f"kill-on-{bad}").touch()
        run.wait(lambda rows, before=before: len(rows) > before + 2 and not (tmp_path / f"kill-on-{bad}").exists())
        if not failure:
            other = cluster.add()
    run.wait(lambda rows: rows[-1]["node"] != bad)
    run.stop()
    other.lose()
    log, name = RestartLog(tmp_path), f"host {bad[:8]}"
    assert log.avoided() == {bad}
    assert log.restarts().avoided_nodes == (name,)
    assert f"workers failed twice on {name}; training goes on with other nodes" in run.told.read_text()
    rows = run.rows()
    expected = ranks(1).run(alone, max(row["step"] for row in rows))[0]
    assert [row["loss"] for row in rows] == pytest.approx([expected[row["step"] - 1] for row in rows], rel=1e-5)


def test_a_group_grows_and_shrinks_with_its_nodes(cluster: Nodes, started: Callable[..., Run], ranks) -> None:
    interval = 10 * STEPS  # a long interval, so that no regular checkpoint is due
    run = started((1, 2), interval)
    run.wait(lambda rows: len(rows) > 5)
    node = cluster.add()
    run.wait(lambda rows: rows[-1]["world"] == 2 and run.saved() > rows[0]["step"])
    run.wait(lambda rows: rows[-1]["step"] > run.saved() + 2)
    held, before = run.saved(), len(run.rows())
    node.lose()
    run.wait(lambda rows: len(rows) > before + 5 and rows[-1]["world"] == 1)
    rows = run.rows()

    changes = [now for then, now in pairwise(rows) if now["world"] != then["world"]]
    assert [row["world"] for row in changes] == [2, 1]
    wished = changes[0]["step"] - 1  # the group grew at a requested checkpoint, between two regular checkpoints
    assert wished % interval
    assert held < changes[1]["step"]  # steps up to the last checkpoint are not repeated after the loss
    expected = ranks(1).run(alone, max(row["step"] for row in rows))[0]
    assert [row["loss"] for row in rows] == pytest.approx([expected[row["step"] - 1] for row in rows], rel=1e-5)
    said = re.findall(r"train: (training .*)", run.told.read_text())
    assert said == [
        "training with 1 worker (allowed: 1 to 2)",
        "training goes on with 2 workers (allowed: 1 to 2), because there is room",
        "training with 1 worker (allowed: 1 to 2)",
    ]


def test_a_notice_is_answered_with_a_checkpoint_and_training_goes_on(
    cluster: Nodes, started: Callable[..., Run], tmp_path: Path
) -> None:
    run = started((1, 1), 10 * STEPS)
    run.wait(lambda rows: len(rows) > 5)
    assert run.saved() == 0
    cluster.add()
    noticed = len(run.rows())
    # the cloud announces that the training node will be terminated, and preemption.py passes the notice to Ray
    with served("aws") as metadata:
        metadata.announce(20)  # 20 s are enough, because ranks check for notices every five seconds
        told = ["--node-id", run.rows()[-1]["node"], "--address", cluster.address, "--metadata", metadata.address]
        command = [sys.executable, str(ROOT / "cluster" / "preemption.py"), "watch", *told]
        environment = {**cluster.environment, "TMPDIR": str(tmp_path)}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)
    run.wait(lambda rows: run.saved())
    run.wait(lambda rows: rows[-1]["step"] > run.saved() + 2)  # waits until training has continued
    assert run.saved() > noticed
    run.wait(lambda rows: rows[-1]["node"] != rows[0]["node"])
    rows = run.rows()
    (moved,) = [now["step"] for then, now in pairwise(rows) if now["node"] != then["node"]]
    assert moved == run.saved() + 1


def test_a_rank_that_dies_in_the_save_on_a_notice_does_not_strand_the_others(
    cluster: Nodes, started: Callable[..., Run], tmp_path: Path, ranks
) -> None:
    """The other ranks continue from the last complete checkpoint, long before the deadline of the notice."""
    cluster.add()
    run = started((1, 2), 5, dies_in_save=True)
    run.wait(lambda rows: rows[-1:] and rows[-1]["world"] == 2 and run.saved() > rows[0]["step"])
    notice = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "it ends"]
    node = ["--node-id", (tmp_path / "node-1").read_text(), "--address", cluster.address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", *notice, *node]
    subprocess.run([*command, "--deadline-remaining-seconds", "3600"], env=cluster.environment, check=True)
    noticed = len(run.rows())
    run.wait(lambda rows: len(rows) > noticed + 2 and rows[-1]["world"] == 1)
    rows = run.rows()
    again = max(number for number, row in enumerate(rows) if row["world"] == 2) + 1
    assert rows[again]["step"] % 5 == 1  # training continued right after a regular checkpoint
    assert rows[again]["step"] <= rows[again - 1]["step"] + 1
    expected = ranks(1).run(alone, max(row["step"] for row in rows))[0]
    assert [row["loss"] for row in rows] == pytest.approx([expected[row["step"] - 1] for row in rows], rel=1e-5)
