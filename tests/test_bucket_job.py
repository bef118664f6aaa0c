"""A job whose results are in a bucket continues on another machine after its machine was lost."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from adapt.runner.bucket import S3Bucket
from adapt.runner.bucket_errors import Address
from adapt.runner.lock import progress_in
from benchmarks.s3_server import BUCKET, Server, serving
from tests import drive
from tests.drive import Jobs
from tests.samples import sentences

pytestmark = pytest.mark.slow
jobs = pytest.fixture(drive.jobs)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Returns a server that speaks S3, which this process and its children use."""
    with serving() as server:
        for name, value in {**server.environment, "DONTSTOP_KEY": "0123456789abcdef"}.items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_lost_machine_is_replaced_by_another_one(s3: Server, jobs: Jobs, tmp_path: Path, tiny_bert: Path) -> None:
    """All processes are killed and the local copy is deleted. Afterwards, the store throttles every third request."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(300)))
    arguments = [
        f"--model.path={tiny_bert}",
        f"--corpus.paths={corpus}",
        "--corpus.heldout_fraction=0.05",
        "--training.max_steps=200",
        "--training.global_batch_size=8",
        "--training.micro_batch=8",
        "--training.sequence_length=64",
        "--training.log_interval_steps=1",
        "--training.checkpoint_interval_steps=10",
        "--evaluation.sequence_length=64",
        "--evaluation.bootstrap_samples=50",
        "--evaluation.examples=0",
    ]
    bucket = S3Bucket(Address(BUCKET, f"job-{uuid4().hex}"))

    def stored(pattern: str) -> list[str]:
        return [name for name in bucket.objects("") if Path(name).match(pattern)]

    lost = jobs.start(tmp_path, [*arguments, f"--storage.cache={tmp_path / 'one'}"], root=bucket.address.url())
    lost.until(lambda: bool(stored("train/*/*/checkpoints/*/step-*/seal-*")))
    for process in (*lost.below(), psutil.Process(lost.process.pid)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    lost.end()
    shutil.rmtree(tmp_path / "one")
    (held,) = (name for name, of in bucket.objects("leases/train/").items() if of.size > 64)
    progress = progress_in(bucket.get(held))
    bucket.put(held, " ".join(progress).encode(), None)  # ends the lease at once, as if 60 s had passed

    s3.faults(kind="slow down", every=3)
    again = jobs.start(tmp_path, [*arguments, f"--storage.cache={tmp_path / 'two'}"], root=bucket.address.url())
    path = Path(again.result()["path"])
    s3.faults()
    assert again.first_step() > 1
    assert path.is_relative_to(tmp_path / "two")
    assert (path / "model.safetensors").is_file()
    assert stored("export/*/*/model.safetensors")
    assert len(stored("records/*/*.json")) == 6
