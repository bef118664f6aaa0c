"""Tests that a training run on a worker node continues while the head node of the cluster is lost and restarted."""

from pathlib import Path

import pytest

from adapt.ray.runtime import NODE_ADDRESS
from cluster.here.demonstrations import kept_in
from tests.forks.nodes import forked_nodes
from tests.train.watched import Run

pytestmark = pytest.mark.slow


def test_a_training_goes_on_without_the_head_and_saves_again_when_it_is_back(tmp_path: Path) -> None:
    with forked_nodes(tmp_path, further=kept_in(tmp_path / "state")) as cluster:
        head = cluster.start_head()
        node = cluster.add()
        run = Run(cluster, tmp_path, (1, 1), 5, **{NODE_ADDRESS: node.host})
        try:
            run.wait(lambda rows: run.saved() >= 5)
            head.lose()
            lost = run.rows()[-1]["step"]
            run.wait(lambda rows: rows[-1]["step"] > lost + 2)
            head.start()
            back = run.rows()[-1]["step"]
            run.wait(lambda rows: run.saved() > back)
        finally:
            run.stop()
        rows = run.rows()
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))  # no step is repeated
        assert run.told.read_text().count("training with") <= 1
