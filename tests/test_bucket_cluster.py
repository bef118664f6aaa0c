"""Tests a job on a cluster whose nodes share nothing but a bucket.

Each node has its own disk, at the same path. The disk of the job's node holds the model and a local copy of the bucket.
"""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from adapt.runner.bucket import S3Bucket
from adapt.runner.bucket_errors import Address
from adapt.train.held_time import HELD_FILE
from adapt.train.restarts import RestartLog
from benchmarks.s3_server import BUCKET, serving
from cluster.here.nodes import Node, Nodes
from tests.drive import PATIENCE_S, ROOT
from tests.forks.nodes import DISK, become_member, forked_nodes, has_own_disks
from tests.forks.server import Forked
from tests.samples import sentences

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_own_disks(), reason="this user may not mount a disk")]

STEPS = 300


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


@dataclass
class Work:
    """A training job whose storage root is in a bucket."""

    cluster: Nodes
    folder: Path
    bucket: S3Bucket
    arguments: list[str]

    @classmethod
    def made(cls, cluster: Nodes, folder: Path, model: Path) -> "Work":
        """Writes a corpus, and copies the model to the disk of the job's node."""
        corpus, own = folder / "corpus.jsonl", folder / "disk" / "model"
        shutil.copytree(model, own)
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(300)))
        bucket = S3Bucket(Address(BUCKET, f"job-{uuid4().hex}"))
        arguments = [
            f"--model.path={own}",
            f"--corpus.paths={corpus}",
            "--corpus.heldout_fraction=0.05",
            f"--training.max_steps={STEPS}",
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
            f"--storage.cache={folder / 'disk' / 'cache'}",
        ]
        return cls(cluster, folder, bucket, arguments)

    @property
    def files(self) -> list[str]:
        """Names of the files with the job's output and messages."""
        return [str(self.folder / "out"), str(self.folder / "err")]

    def start(self) -> Forked:
        """Starts the job."""
        return Forked(become_member, f"{ROOT}/jobs/dapt.py", self.arguments, self.cluster.environment, self.files)

    def stored(self, pattern: str) -> list[str]:
        """Lists the objects of the bucket that match a pattern."""
        return [name for name in self.bucket.objects("") if Path(name).match(pattern)]

    def wait_for_checkpoint(self, job: Forked) -> None:
        """Waits until both workers have uploaded a checkpoint."""
        while len(self.stored("train/*/*/checkpoints/*/step-*/seal-*")) < 2:
            assert job.poll() is None, Path(self.files[1]).read_text()
            time.sleep(0.2)

    def result_of(self, job: Forked) -> Path:
        """Waits for the end of the job. Returns the folder of the exported model."""
        code = job.wait(PATIENCE_S)
        assert code == 0, Path(self.files[1]).read_text()
        path = Path(json.loads(Path(self.files[0]).read_text().splitlines()[-1])["path"])
        assert (path / "model.safetensors").is_file()
        assert self.stored("export/*/*/model.safetensors")
        assert len(self.stored(f"train/*/*/checkpoints/*/step-{STEPS:08}/seal-*")) == 2
        return path


def test_nodes_share_nothing_but_the_bucket(cluster: Nodes, tmp_path: Path, tiny_bert: Path) -> None:
    """A node is lost during the training, and another node replaces it."""
    first = with_own_disk(cluster, tmp_path, 1)
    with_own_disk(cluster, tmp_path, 2)
    work = Work.made(cluster, tmp_path, tiny_bert)
    job = work.start()
    work.wait_for_checkpoint(job)
    first.lose()
    with_own_disk(cluster, tmp_path, 3)
    path = work.result_of(job)
    (folder,) = path.parents[1].glob("train/*/")
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()] == list(range(1, STEPS + 1))
    restarts = RestartLog(folder).restarts()
    assert restarts.count == 1
    assert restarts.redone_steps < 2 * 20  # the previous checkpoint may not have been uploaded yet
    for number in (2, 3):  # each node has copied the inputs to its own disk
        own = tmp_path / f"disk-{number}"
        assert list(own.glob("model/model.safetensors"))
        assert list(own.glob("cache/*/*/*/prepare/*/*.arrow"))


def test_the_job_s_node_is_lost_with_its_disk(cluster: Nodes, tmp_path: Path, tiny_bert: Path) -> None:
    """Kills the job and empties its node's disk. The same command continues from the last checkpoint in the bucket."""
    with_own_disk(cluster, tmp_path, 1)
    with_own_disk(cluster, tmp_path, 2)
    work = Work.made(cluster, tmp_path, tiny_bert)
    job = work.start()
    work.wait_for_checkpoint(job)
    job.kill()
    job.wait(PATIENCE_S)
    shutil.rmtree(tmp_path / "disk" / "cache")
    path = work.result_of(work.start())
    (folder,) = path.parents[1].glob("train/*/")
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]
    assert steps == list(range(1, STEPS + 1))
    begins = [json.loads(line) for line in (folder / HELD_FILE).read_text().splitlines() if '"ranks"' in line]
    assert begins[-1]["step"] >= 20
