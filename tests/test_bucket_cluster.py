"""A job on a cluster whose nodes share nothing but a bucket.

Each node sees a disk of its own at the path where the job's node has its local copy and the model.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from adapt.runner.bucket import S3Bucket
from adapt.runner.bucket_errors import Address
from benchmarks.s3_server import BUCKET, serving
from cluster.here.nodes import Nodes
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
            for number in (1, 2):
                (tmp_path / f"disk-{number}").mkdir()
                nodes.environment[DISK] = f"{tmp_path / f'disk-{number}'}:{tmp_path / 'disk'}"
                nodes.add(1)
            del nodes.environment[DISK]
            yield nodes


def test_nodes_share_nothing_but_the_bucket(cluster: Nodes, tmp_path: Path, tiny_bert: Path) -> None:
    corpus, model = tmp_path / "corpus.jsonl", tmp_path / "disk" / "model"
    shutil.copytree(tiny_bert, model)
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(300)))
    bucket = S3Bucket(Address(BUCKET, f"job-{uuid4().hex}"))
    arguments = [
        f"--model.path={model}",
        f"--corpus.paths={corpus}",
        "--corpus.heldout_fraction=0.05",
        "--training.max_steps=12",
        "--training.global_batch_size=8",
        "--training.micro_batch=4",
        "--training.sequence_length=64",
        "--training.log_interval_steps=1",
        "--training.checkpoint_interval_steps=4",
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
    code = job.wait(PATIENCE_S)
    said = Path(files[1]).read_text()
    assert code == 0, said
    path = Path(json.loads(Path(files[0]).read_text().splitlines()[-1])["path"])
    steps = [json.loads(line)["step"] for line in next(path.parents[1].glob("train/*/metrics.jsonl")).open()]
    assert steps == list(range(1, 13))
    stored = bucket.objects("")
    assert (path / "model.safetensors").is_file()
    assert [name for name in stored if Path(name).match("export/*/*/model.safetensors")]
    seals = [name for name in stored if Path(name).match("train/*/*/checkpoints/*/step-00000012/seal-*")]
    assert len(seals) == 2
    for number in (1, 2):  # each node has brought the inputs to its own disk
        own = tmp_path / f"disk-{number}"
        assert list(own.glob("model/model.safetensors"))
        assert list(own.glob("cache/*/*/*/prepare/*/*.arrow"))
