"""A job on a cluster whose nodes share nothing but a bucket.

Each node sees its own disk at the path where the job's node has its local copy and the model.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from adapt.runner.bucket import S3Bucket
from adapt.runner.bucket_errors import Address
from adapt.train.restarts import RestartLog
from benchmarks.s3_server import BUCKET, serving
from cluster.here.nodes import Node, Nodes
from tests.drive import PATIENCE_S, ROOT
from tests.forks.nodes import DISK, become_member, forked_nodes, has_own_disks
from tests.forks.server import Forked
from tests.samples import sentences

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_own_disks(), reason="this user may not mount a disk")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Returns a cluster of a head without cores and two nodes with their own disks."""
    for name in ("disk", "cluster"):
        (tmp_path / name).mkdir()
    with serving() as server:
        variables = {**server.environment, "DONTSTOP_KEY": "0123456789abcdef"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with forked_nodes(tmp_path / "cluster", notices_quickly=True, further=variables) as nodes:
            nodes.start_head()
            yield nodes


def with_own_disk(cluster: Nodes, folder: Path, number: int) -> Node:
    """Starts a node that sees an empty folder at the path of the folder `disk`."""
    own = folder / f"disk-{number}"
    own.mkdir()
    cluster.environment[DISK] = f"{own}:{folder / 'disk'}"
    node = cluster.add(1)
    del cluster.environment[DISK]
    return node


def test_nodes_share_nothing_but_the_bucket(cluster: Nodes, tmp_path: Path, tiny_bert: Path) -> None:
    """A node is lost during the training, and another node replaces it."""
    first = with_own_disk(cluster, tmp_path, 1)
    with_own_disk(cluster, tmp_path, 2)
    corpus, model = tmp_path / "corpus.jsonl", tmp_path / "disk" / "model"
    shutil.copytree(tiny_bert, model)
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(300)))
    bucket = S3Bucket(Address(BUCKET, f"job-{uuid4().hex}"))
    arguments = [
        f"--model.path={model}",
        f"--corpus.paths={corpus}",
        "--corpus.heldout_fraction=0.05",
        "--training.max_steps=300",
        "--training.global_batch_size=8",
        "--training.micro_batch=4",
        "--training.sequence_length=64",
        "--training.log_interval_steps=1",
        "--training.checkpoint_interval_steps=20",
        "--evaluation.sequence_length=64",
        "--evaluation.bootstrap_samples=50",
        "--evaluation.examples=0",
        "--resources.workers=2",
        "--resources.gpus_per_worker=0",
        f"--resources.address={cluster.address}",
        f"--storage.root={bucket.address.url()}",
        f"--storage.cache={tmp_path / 'disk' / 'cache'}",
    ]
    files = [str(tmp_path / "out"), str(tmp_path / "err")]
    job = Forked(become_member, f"{ROOT}/jobs/dapt.py", arguments, cluster.environment, files)

    def stored(pattern: str) -> list[str]:
        return [name for name in bucket.objects("") if Path(name).match(pattern)]

    while len(stored("train/*/*/checkpoints/*/step-*/seal-*")) < 2:
        assert job.poll() is None, Path(files[1]).read_text()
        time.sleep(0.2)
    first.lose()
    with_own_disk(cluster, tmp_path, 3)
    code = job.wait(PATIENCE_S)
    said = Path(files[1]).read_text()
    assert code == 0, said
    path = Path(json.loads(Path(files[0]).read_text().splitlines()[-1])["path"])
    assert (path / "model.safetensors").is_file()
    assert stored("export/*/*/model.safetensors")
    assert len(stored("train/*/*/checkpoints/*/step-00000300/seal-*")) == 2
    (folder,) = path.parents[1].glob("train/*/")
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()] == list(range(1, 301))
    restarts = RestartLog(folder).restarts()
    assert restarts.count == 1
    assert restarts.redone_steps < 2 * 20  # the previous checkpoint may not have been uploaded yet
    for number in (2, 3):  # each node has copied the inputs to its own disk
        own = tmp_path / f"disk-{number}"
        assert list(own.glob("model/model.safetensors"))
        assert list(own.glob("cache/*/*/*/prepare/*/*.arrow"))
