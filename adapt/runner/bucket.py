"""Reads and writes the objects of a bucket with the S3 protocol. Writes can be conditional.

`S3Bucket` waits while the store throttles or cannot be reached, and while expired credentials are renewed. If the
answer to a write was lost, `S3Bucket` recognizes its own object by the content, so repeating the write causes no
conflict. The store's address, region and credentials come from the sources that every AWS tool reads: environment
variables, AWS's configuration files, or the machine's role.
"""

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from adapt.runner import bucket_errors
from adapt.support.errors import ConfigError, StorageError
from adapt.terminal.console import log

T = TypeVar("T")
ABSENT = ""
"""Value of `replaces` for a write that may only create an object, not replace one."""
PATIENCE_S = 1800.0
"""Maximum time for which a request waits for a store that throttles, fails or refuses expired credentials [s]."""
FIRST_PATIENCE_S = 10.0
"""Replaces PATIENCE_S before the first successful request [s]. It is short, because address or credentials may be
wrong."""
_LONGEST_PAUSE_S = 15.0
_SILENT_S = 2.0
"""Time after which a wait is logged [s]."""
_PART = 32 * 2**20
"""Size of the parts in which larger files are uploaded [bytes]."""
_MOST_PARTS = 10_000
_DELETED_AT_ONCE = 1000
_WITHOUT_DELETE = {"NotImplemented", "501", "MethodNotAllowed", "405", "MissingContentMD5"}
"""Error codes of stores that lack the request DeleteObjects, or require its MD5 digest, which boto3 no longer sends."""
_THREADS = 8
"""Number of files, or parts of files, that are uploaded at the same time."""
_DIGEST = "sha256"
_UPLOAD = "upload"


class StoredObject(NamedTuple):
    """An object in a listing."""

    size: int
    """Size of the object [bytes]."""
    etag: str
    """Text that changes whenever the object changes."""
    age_s: float
    """Time since the object was written, measured by the store's clocks only [s]."""


class ReadObject(NamedTuple):
    """A small object that was read from the bucket."""

    body: bytes
    etag: str
    is_intact: bool
    """Whether the body has the digest that `S3Bucket.put` stored with it."""


class S3Bucket:
    """The objects below a prefix of a bucket. Names of objects are relative to the prefix.

    Several threads may share an `S3Bucket`.

    Args:
        address: the bucket and the prefix.
        patience_s: maximum time for which a request waits for the store [s]; see PATIENCE_S.
    """

    def __init__(self, address: bucket_errors.Address, patience_s: float = PATIENCE_S) -> None:
        self.address, self._patience_s = address, patience_s
        self._connection: tuple[int, Any] | None = None
        """Process id and client of boto3. The process id is stored, because a forked process needs its own client."""
        self._has_worked, self._deletes_many = False, True
        self._slots = threading.Semaphore(_THREADS)
        """Limits how many files or parts of files are in memory, for all uploads together."""

    def hasty(self, patience_s: float) -> "S3Bucket":
        """Returns the same bucket with another `patience_s`, for requests that must not delay their caller."""
        other = S3Bucket(self.address, patience_s)
        other._connection, other._has_worked, other._slots = self._connection, True, self._slots
        return other

    def get(self, name: str) -> ReadObject | None:
        """Reads a small object. Returns None if there is no such object."""

        def read(client: Any) -> ReadObject | None:
            try:
                answer = client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))
            except Exception as error:
                if bucket_errors.code_of(error) in bucket_errors.MISSING:
                    return None
                raise
            body = answer["Body"].read()
            intact = answer["Metadata"].get(_DIGEST) == hashlib.sha256(body).hexdigest()
            return ReadObject(body, answer["ETag"], intact)

        return self._call(f"read {self.address.url(name)}", read)

    def put(self, name: str, body: bytes, replaces: str | None) -> str:
        """Writes a small object, whole or not at all, and returns its ETag.

        Args:
            name: name of the object.
            body: content.
            replaces: ETag that the existing object must have. ABSENT if the object must not exist yet. None for an
                unconditional write.

        Raises:
            ConflictError: the object does not meet the condition.
            StorageError: the object cannot be written.
        """

        def write(client: Any) -> str:
            place = {"Bucket": self.address.bucket, "Key": self.address.key(name)}
            metadata = {_DIGEST: hashlib.sha256(body).hexdigest()}
            return str(client.put_object(**place, Body=body, Metadata=metadata, **_condition(replaces))["ETag"])

        try:
            return self._call(f"write {self.address.url(name)}", write)
        except bucket_errors.ConflictError:  # an earlier try may have written the object, although its answer was lost
            if (there := self.get(name)) and there.body == body:
                return there.etag
            raise

    def upload(self, name: str, file: Path, replaces: str | None) -> str:
        """Writes a file as an object, whole or not at all, and returns the object's ETag.

        Args:
            name: name of the object.
            file: the file.
            replaces: as in `put`.

        Raises:
            ConflictError: the object does not meet the condition.
            OSError: the file cannot be read.
            StorageError: the object cannot be written.
        """
        size, mark = file.stat().st_size, uuid4().hex
        place = {"Bucket": self.address.bucket, "Key": self.address.key(name)}
        doing, condition = f"write {self.address.url(name)}", _condition(replaces)
        try:
            if size <= _PART:
                about = {_UPLOAD: mark}
                with self._slot(doing):
                    body = file.read_bytes()
                    answer = self._call(
                        doing, lambda it: it.put_object(**place, Body=body, Metadata=about, **condition)
                    )
                return str(answer["ETag"])
            return self._in_parts(doing, place, file, size, mark, condition)
        except bucket_errors.ConflictError:
            answer = self._call(doing, lambda client: _none_if_missing(lambda: client.head_object(**place)))
            if answer and answer["Metadata"].get(_UPLOAD) == mark:
                return str(answer["ETag"])
            raise

    @contextmanager
    def _slot(self, doing: str) -> Iterator[None]:
        """Waits until the uploads of other threads leave room in memory for another part of a file."""
        if not self._slots.acquire(timeout=self._patience_s):
            raise StorageError(
                f"cannot {doing}: other uploads took over {self._patience_s:.0f} s", "run the same command again"
            )
        try:
            yield
        finally:
            self._slots.release()

    def _in_parts(
        self, doing: str, place: Mapping[str, str], file: Path, size: int, mark: str, condition: Mapping[str, str]
    ) -> str:
        """Uploads a large file in parts. The object appears when all parts are uploaded."""
        length = max(_PART, -(-size // _MOST_PARTS))
        begun = self._call(doing, lambda it: it.create_multipart_upload(**place, Metadata={_UPLOAD: mark}))
        part_of = {**place, "UploadId": begun["UploadId"]}

        def send(number: int) -> dict[str, Any]:
            with self._slot(doing):
                with file.open("rb") as opened:
                    opened.seek((number - 1) * length)
                    body = opened.read(min(length, size - (number - 1) * length))
                answer = self._call(doing, lambda it: it.upload_part(**part_of, PartNumber=number, Body=body))
            return {"PartNumber": number, **{k: v for k, v in answer.items() if k == "ETag" or "Checksum" in k}}

        try:
            with ThreadPoolExecutor(_THREADS) as threads:
                parts = list(threads.map(send, range(1, -(-size // length) + 1)))
            parts = [{name: value for name, value in part.items() if name != "ChecksumType"} for part in parts]
            whole = {**part_of, "MultipartUpload": {"Parts": parts}, **condition}
            return str(self._call(doing, lambda it: it.complete_multipart_upload(**whole))["ETag"])
        except BaseException:
            try:
                self._client().abort_multipart_upload(**part_of)
            except Exception as error:  # parts that are not deleted only cost money
                reason = bucket_errors.reason_of(error)
                log(f"the parts of a failed upload to {self.address.url()} could not be removed: {reason}")
            raise

    def abort_uploads(self, prefix: str) -> None:
        """Deletes the parts of unfinished uploads, which are invisible but cost money.

        If the store denies this, the parts remain until the bucket's lifecycle rule removes them.

        Args:
            prefix: beginning of the names of the objects.
        """

        def abort(client: Any) -> None:
            where = {"Bucket": self.address.bucket, "Prefix": self.address.key(prefix)}
            for page in client.get_paginator("list_multipart_uploads").paginate(**where):
                for each in page.get("Uploads", ()):
                    client.abort_multipart_upload(Bucket=where["Bucket"], Key=each["Key"], UploadId=each["UploadId"])

        try:
            self._call(f"abort uploads to {self.address.url(prefix)}", abort)
        except StorageError as error:
            log(f"parts of killed uploads may remain: {error.what}")

    def download(self, name: str, file: Path) -> bool:
        """Writes an object to a local file. Returns whether the object exists."""

        def fetch(client: Any) -> bool:
            try:
                answer = client.get_object(Bucket=self.address.bucket, Key=self.address.key(name))
            except Exception as error:
                if bucket_errors.code_of(error) in bucket_errors.MISSING:
                    return False
                raise
            with file.open("wb") as opened:
                for block in answer["Body"].iter_chunks(2**20):
                    opened.write(block)
            return True

        return self._call(f"read {self.address.url(name)}", fetch)

    def objects(self, prefix: str, is_flat: bool = False) -> dict[str, StoredObject]:
        """Lists the objects whose names begin with a prefix, keyed by name.

        Args:
            prefix: beginning of the names.
            is_flat: whether to leave out objects whose names have another slash after the prefix.
        """

        def ask(client: Any) -> dict[str, StoredObject]:
            found: dict[str, StoredObject] = {}
            begin = len(self.address.key(""))
            where = {"Bucket": self.address.bucket, "Prefix": self.address.key(prefix)}
            pages = client.get_paginator("list_objects_v2").paginate(**where, **({"Delimiter": "/"} if is_flat else {}))
            for page in pages:
                now = _date(page)
                for entry in page.get("Contents", ()):
                    age = (now - entry["LastModified"]).total_seconds()
                    found[entry["Key"][begin:]] = StoredObject(entry["Size"], entry["ETag"], age)
            return found

        return self._call(f"list {self.address.url(prefix)}", ask)

    def folders(self, prefix: str) -> list[str]:
        """Lists the folders directly below a folder. `prefix` ends with a slash."""

        def ask(client: Any) -> list[str]:
            where = {"Bucket": self.address.bucket, "Prefix": self.address.key(prefix), "Delimiter": "/"}
            pages = client.get_paginator("list_objects_v2").paginate(**where)
            found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", ())]
            return [key.rstrip("/").rsplit("/", 1)[-1] for key in found]

        return self._call(f"list {self.address.url(prefix)}", ask)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects, 1,000 per request. Missing objects are ignored.

        If the store lacks the request DeleteObjects, each object is deleted by a separate request.
        """
        names = list(names)
        for begin in range(0, len(names), _DELETED_AT_ONCE):
            some = names[begin : begin + _DELETED_AT_ONCE]
            if len(some) > 1 and self._deletes_many:
                keys = {self.address.key(name): name for name in some}
                doing = f"delete {len(some)} objects of {self.address.url()}"
                left = self._call(doing, partial(_delete_many, self.address.bucket, list(keys)))
                self._deletes_many = left is not None
                some = some if left is None else [keys[key] for key in left]
            for name in some:  # a request for a single object also reports why the object cannot be deleted
                place = {"Bucket": self.address.bucket, "Key": self.address.key(name)}
                self._call(f"delete {self.address.url(name)}", partial(_delete, place))

    def check(self) -> None:
        """Checks that objects can be written, read and deleted, and that the store supports conditional writes."""
        name, body = f".try-{uuid4().hex}", b"dontstop checks this bucket"
        etag = self.put(name, body, ABSENT)
        try:
            for what, replaces in (("If-None-Match", ABSENT), ("If-Match", '"0123456789abcdef0123456789abcdef"')):
                try:
                    self.put(name, b"this must be refused", replaces)
                except bucket_errors.ConflictError:
                    continue
                raise bucket_errors.unconditional(self.address, f"it ignored {what}")
            self.put(name, b"this must be accepted", etag)
        finally:
            self.delete([name])

    def _call(self, doing: str, request: Callable[[Any], T]) -> T:
        """Calls a function with a client, and repeats the call while the store is busy or credentials have expired."""
        began, pause, is_said = time.monotonic(), 0.2, False
        while True:
            try:
                answer = request(self._client())
            except Exception as error:
                if bucket_errors.code_of(error) in bucket_errors.EXPIRED:
                    self._connection = None  # drops the client, so that the next client reads the new credentials
                waits_for = bucket_errors.awaited(self.address, doing, error)
                patience = self._patience_s if self._has_worked else min(self._patience_s, FIRST_PATIENCE_S)
                if time.monotonic() - began + pause > patience:
                    raise StorageError(
                        f"cannot {doing}: {bucket_errors.reason_of(error)}",
                        f"{waits_for}; then run the same command again",
                    ) from error
                if not is_said and time.monotonic() - began > _SILENT_S:
                    log(f"cannot {doing}: {bucket_errors.reason_of(error)}; waiting ({waits_for})")
                    is_said = True
                time.sleep(random.uniform(pause / 2, pause))  # the pause is random, so that not all threads try at once
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if is_said:
                log(f"{self.address.url()} answers again")
            self._has_worked = True
            return answer

    def _client(self) -> Any:
        """Returns boto3's client of this process."""
        connection = self._connection  # reads the attribute once, because another thread may set it to None
        if connection is None or connection[0] != os.getpid():
            try:
                import boto3
                from botocore.config import Config
            except ImportError as error:
                raise ConfigError(
                    f"storage.root {self.address.url()} needs boto3", "pip install 'dontstop[s3]'"
                ) from error
            settings = Config(
                retries={"total_max_attempts": 1},  # no retries by boto3, because `_call` repeats requests
                max_pool_connections=4 * _THREADS,
                connect_timeout=5,
                read_timeout=60,
            )
            client = boto3.session.Session().client("s3", config=settings)
            self._connection = connection = (os.getpid(), client)
        return connection[1]


def _condition(replaces: str | None) -> dict[str, str]:
    if replaces is None:
        return {}
    return {"IfMatch": replaces} if replaces else {"IfNoneMatch": "*"}


def _delete(place: Mapping[str, str], client: Any) -> None:
    client.delete_object(**place)


def _delete_many(bucket: str, keys: list[str], client: Any) -> list[str] | None:
    """Deletes objects in one request. Returns the undeleted objects, or None if the store lacks the request."""
    try:
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True})
    except Exception as error:
        if bucket_errors.code_of(error) in _WITHOUT_DELETE:
            return None
        raise
    return [str(each["Key"]) for each in answer.get("Errors", ()) if each.get("Code") not in bucket_errors.MISSING]


def _none_if_missing(request: Callable[[], T]) -> T | None:
    try:
        return request()
    except Exception as error:
        if bucket_errors.code_of(error) in bucket_errors.MISSING:
            return None
        raise


def _date(answer: Mapping[str, Any]) -> datetime:
    """Returns the time at which the store sent an answer, measured with the store's clock."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
