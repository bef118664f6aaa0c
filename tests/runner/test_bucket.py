"""Tests the client of buckets against a server that speaks S3, with and without faults."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from adapt.runner import bucket as module
from adapt.runner.bucket import ABSENT, S3Bucket
from adapt.runner.bucket_errors import Address, ConflictError, awaited
from adapt.support.errors import ConfigError, StorageError
from benchmarks.s3_server import BUCKET, Server


def test_objects_are_written_read_listed_and_deleted(bucket: S3Bucket, tmp_path: Path) -> None:
    assert bucket.get("a/one") is None
    etag = bucket.put("a/one", b"first", None)
    bucket.put("a/b/two", b"second", None)
    read = bucket.get("a/one")
    assert read == (b"first", etag, True)
    assert {name: of.size for name, of in bucket.objects("a/").items()} == {"a/one": 5, "a/b/two": 6}
    assert list(bucket.objects("a/", is_flat=True)) == ["a/one"]
    assert bucket.folders("a/") == ["b"]
    assert bucket.download("a/b/two", tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == b"second"
    assert not bucket.download("a/three", tmp_path / "three")
    bucket.delete(["a/one", "a/b/two", "a/three"])
    assert bucket.objects("") == {}


@pytest.mark.parametrize(("lacks", "requests"), [(False, {"POST": 2, "DELETE": 1}), (True, {"POST": 1, "DELETE": 7})])
def test_objects_are_deleted_in_batches_or_else_one_by_one(
    bucket: S3Bucket, s3: Server, monkeypatch: pytest.MonkeyPatch, lacks: bool, requests: dict[str, int]
) -> None:
    monkeypatch.setattr(module, "_DELETED_AT_ONCE", 3)
    names = [f"a/{number}" for number in range(6)]
    for name in names:
        bucket.put(name, b"content", None)
    s3.faults(**({"kind": "lacks", "methods": ["POST"]} if lacks else {}))
    bucket.delete([*names, "a/missing"])
    assert {method: count for method, count in s3.requests().items() if method in requests} == requests
    assert bucket.objects("") == {}


def test_missing_credentials_are_named_as_such() -> None:
    said = awaited(Address("tests", ""), "write s3://tests", NoCredentialsError())
    assert "AWS_ACCESS_KEY_ID" in said
    assert "renew" not in said


def test_a_conditional_write_changes_nothing_if_the_object_has_changed(bucket: S3Bucket, tmp_path: Path) -> None:
    first = bucket.put("x", b"first", ABSENT)
    second = bucket.put("x", b"second", first)
    file = tmp_path / "file"
    file.write_bytes(b"third")
    for replaces in (ABSENT, first):
        with pytest.raises(ConflictError):
            bucket.put("x", b"third", replaces)
        with pytest.raises(ConflictError):
            bucket.upload("x", file, replaces)
    with pytest.raises(ConflictError):
        bucket.put("missing", b"third", first)
    read = bucket.get("x")
    assert read == (b"second", second, True)


def test_one_of_many_writers_wins(bucket: S3Bucket) -> None:
    won = []

    def write(number: int) -> None:
        try:
            bucket.put("x", str(number).encode(), ABSENT)
            won.append(number)
        except ConflictError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = bucket.get("x")
    assert read
    assert [read.body.decode()] == [str(number) for number in won]


@pytest.mark.parametrize("kind", ["slow down", "fail", "cut request", "lose answer", "cut answer"])
def test_requests_are_repeated_after_a_fault(bucket: S3Bucket, s3: Server, tmp_path: Path, kind: str) -> None:
    s3.faults(kind=kind, every=3)
    file, copy = tmp_path / "file", tmp_path / "copy"
    for number in range(4):
        file.write_bytes(b"%d" % number * 1000)
        etag = bucket.put(f"small-{number}", b"old", ABSENT)
        bucket.put(f"small-{number}", b"new", etag)
        bucket.upload(f"file-{number}", file, ABSENT)
        assert bucket.download(f"file-{number}", copy)
        assert copy.read_bytes() == file.read_bytes()
    assert len(bucket.objects("")) == 8


def test_a_large_file_arrives_whole_in_parts(
    bucket: S3Bucket, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", 5 * 2**20)  # 5 MiB is the smallest part that S3 accepts
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(b"0123456789abcdef" * (11 * 2**16))
    s3.faults(kind="lose answer", every=3, methods=["PUT"])
    bucket.upload("large", file, ABSENT)
    s3.faults()
    assert bucket.download("large", copy)
    assert copy.read_bytes() == file.read_bytes()
    with pytest.raises(ConflictError):
        bucket.upload("large", file, ABSENT)


def test_uploads_together_hold_few_parts_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 10)
    monkeypatch.setattr(module, "_THREADS", 2)
    lock, numbers = threading.Lock(), [0]

    class Client:
        def create_multipart_upload(self, **_: Any) -> dict[str, str]:
            return {"UploadId": "x"}

        def upload_part(self, **_: Any) -> dict[str, str]:
            with lock:
                numbers.append(numbers[-1] + 1)
            time.sleep(0.02)
            with lock:
                numbers.append(numbers[-1] - 1)
            return {"ETag": "x"}

        def complete_multipart_upload(self, **_: Any) -> dict[str, str]:
            return {"ETag": "x"}

        put_object = upload_part

    bucket = S3Bucket(Address("tests", ""))
    buckets = [bucket, bucket.hasty(60.0)]
    for each in buckets:
        monkeypatch.setattr(each, "_client", Client)
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(b"a" * 45)
    small.write_bytes(b"a")
    with ThreadPoolExecutor(6) as threads:
        for number in range(6):
            threads.submit(buckets[number % 2].upload, "x", [large, large, small][number % 3], ABSENT)
    assert max(numbers) == 2
    assert len(numbers) == 1 + 2 * (4 * 5 + 2)


def test_an_upload_that_breaks_off_leaves_no_object(
    bucket: S3Bucket, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("x", b"works", None)
    monkeypatch.setattr(bucket, "_patience_s", 0.3)
    file = tmp_path / "file"
    file.write_bytes(b"a" * 100_000)
    s3.faults(kind="cut request", methods=["PUT"])
    with pytest.raises(StorageError, match="cannot write s3://"):
        bucket.upload("file", file, ABSENT)
    assert list(bucket.objects("")) == ["x"]


def test_parts_of_killed_uploads_are_deleted(bucket: S3Bucket, s3: Server, capsys: pytest.CaptureFixture[str]) -> None:
    client = bucket._client()

    def begin(name: str) -> None:
        begun = client.create_multipart_upload(Bucket=BUCKET, Key=bucket.address.key(name))
        client.upload_part(
            Bucket=BUCKET, Key=bucket.address.key(name), UploadId=begun["UploadId"], PartNumber=1, Body=b"part"
        )

    def begun() -> list[str]:
        found = client.list_multipart_uploads(Bucket=BUCKET, Prefix=bucket.address.key(""))
        return [each["Key"].removeprefix(bucket.address.key("")) for each in found.get("Uploads", ())]

    begin("train/a/model")
    begin("train/b/model")
    s3.faults(kind="denied")
    bucket.abort_uploads("train/a/")
    assert "parts of killed uploads may remain" in capsys.readouterr().err
    s3.faults()
    assert begun() == ["train/a/model", "train/b/model"]
    bucket.abort_uploads("train/a/")
    assert begun() == ["train/b/model"]


def test_a_store_without_permission_or_conditions_is_named(bucket: S3Bucket, s3: Server) -> None:
    bucket.check()
    s3.faults(kind="denied", methods=["PUT"])
    with pytest.raises(StorageError, match="access is denied") as denied:
        bucket.check()
    assert "s3:PutObject" in denied.value.fix
    s3.faults(unconditional=True)
    with pytest.raises(StorageError, match="does not support conditional writes"):
        bucket.check()
    s3.faults()
    assert bucket.objects("") == {}
    with pytest.raises(StorageError, match="there is no bucket nowhere"):
        S3Bucket(Address("nowhere", "")).check()


def test_requests_go_on_when_expired_credentials_are_renewed(
    bucket: S3Bucket, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said = tmp_path / "credentials", list[str]()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    def renew(message: str) -> None:
        said.append(message)
        write("NEWKEY")

    write("OLDKEY")
    bucket.put("x", b"before", None)
    s3.faults(kind="expired", access_key="OLDKEY")
    monkeypatch.setattr(module, "_SILENT_S", 0.0)
    monkeypatch.setattr(module, "log", renew)
    monkeypatch.setattr(bucket, "_patience_s", 60.0)
    bucket.put("y", b"after", ABSENT)
    assert "ExpiredToken" in said[0]
    assert "renew the credentials" in said[0]
    assert set(bucket.objects("")) == {"x", "y"}


def test_requests_go_on_when_the_clock_of_this_machine_is_set(
    bucket: S3Bucket, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def set_clock(message: str) -> None:
        said.append(message)
        s3.faults()

    bucket.put("x", b"before", None)
    s3.faults(kind="wrong clock")
    monkeypatch.setattr(module, "_SILENT_S", 0.0)
    monkeypatch.setattr(module, "log", set_clock)
    bucket.put("y", b"after", ABSENT)
    assert "RequestTimeTooSkewed" in said[0]
    assert "set the clock of this machine" in said[0]
    assert set(bucket.objects("")) == {"x", "y"}


def test_a_store_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, s3: Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(module, "FIRST_PATIENCE_S", 0.1)
    with pytest.raises(StorageError, match="cannot write s3://tests"):
        S3Bucket(Address("tests", "")).check()
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match="needs boto3"):
        S3Bucket(Address("tests", "")).check()


def test_the_url_of_a_place(bucket: S3Bucket) -> None:
    assert Address.of("s3://tests/team/runs/") == Address("tests", "team/runs")
    assert Address.of("s3://tests") == Address("tests", "")
    assert Address("tests", "").url("a/b") == "s3://tests/a/b"
    for url in ("gs://tests/runs", "s3://", "s3://A/b", "s3://tests/a//b", "s3://tests/../b", "s3://tests/a+b"):
        with pytest.raises(ConfigError, match=r"storage\.root"):
            Address.of(url)
