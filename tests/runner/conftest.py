"""Fixtures: a store for stages, and a file in which toy stages record that they ran."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from adapt.runner import Store
from adapt.runner.bucket import S3Bucket
from adapt.runner.bucket_errors import Address
from adapt.runner.mirror import mirror_folder
from benchmarks.s3_server import BUCKET, Server, serving


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs.txt"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """Returns a server that speaks S3, for the whole session."""
    with serving() as server:
        yield server


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Returns the server with its faults switched off. This process and its children use this server."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.faults()


@pytest.fixture
def bucket(s3: Server) -> S3Bucket:
    """Returns a client for an empty prefix of the server's bucket."""
    return S3Bucket(Address(BUCKET, f"test-{uuid4().hex}"))


@pytest.fixture
def machine(s3: Server, tmp_path: Path) -> Callable[[str], Store]:
    """Returns a function that makes the store of a machine. Machines share only the bucket."""
    url = f"s3://{BUCKET}/test-{uuid4().hex}"
    return lambda name: Store(mirror_folder(url, str(tmp_path / name)))
