"""Tests that one process at a time holds a lease, and that a holder which lost its lease can write nothing."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from adapt.runner import lease as module
from adapt.runner.bucket import S3Bucket
from adapt.runner.lease import CopyState, Lease, is_held_by, leased
from adapt.support.errors import StorageError
from benchmarks.s3_server import Server


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_S", 0.6)
    monkeypatch.setattr(module, "_RENEW_S", 0.1)
    monkeypatch.setattr(module, "_POLL_S", 0.02)


@contextmanager
def suspended(bucket: S3Bucket, mirror: str) -> Iterator[Lease]:
    """Holds a lease that is neither renewed nor freed, like a process that was stopped or killed."""
    yield module._take(bucket, "lease", mirror, None)


def test_a_second_process_waits_until_the_lease_is_free(bucket: S3Bucket) -> None:
    events, waited = [], []

    def other() -> None:
        with leased(bucket, "lease", "other", waited.append):
            events.append("other")

    with leased(bucket, "lease", "one"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(1.5)  # longer than a lease lasts without renewal
        events.append("one")
        assert is_held_by(bucket.objects("lease")["lease"])
    thread.join()
    assert events == ["one", "other"]
    assert len(waited) == 1
    assert waited[0].startswith("process ")
    assert not is_held_by(bucket.objects("lease")["lease"])


def test_the_next_holder_learns_which_local_copy_was_used_last(bucket: S3Bucket) -> None:
    with leased(bucket, "lease", "one") as held:
        assert held.progress == ("", "", "")
        held.note(CopyState("one", "whole", "run"))
    with leased(bucket, "lease", "two") as held:
        assert held.progress == ("one", "whole", "run")
        assert held.is_restart
    with leased(bucket, "lease", "three") as held:  # the second one had not copied the files
        assert held.progress.mirror == "one"


def test_a_lease_of_the_same_machine_is_taken_over_at_once(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_S", 1000.0)
    with suspended(bucket, "one"), leased(bucket, "lease", "one") as held:
        assert held.is_restart


def test_a_local_copy_that_another_machine_shares_is_no_restart(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local lock need not exist for the other machine, so its lease must end first."""
    with suspended(bucket, "one") as old:
        monkeypatch.setattr(module.socket, "gethostname", lambda: "elsewhere")
        start = time.monotonic()
        with leased(bucket, "lease", "one") as held:
            assert time.monotonic() - start >= 0.6
            assert not held.is_restart
            with pytest.raises(StorageError, match="was lost"):
                old.check()


@pytest.mark.parametrize("date_shift_s", [0, 7200, -7200])
def test_a_holder_that_does_not_renew_loses_the_lease(bucket: S3Bucket, s3: Server, date_shift_s: int) -> None:
    """A wrong clock of the server changes nothing, because no two clocks are compared."""
    s3.faults(date_shift_s=date_shift_s)
    with suspended(bucket, "one") as old:
        start = time.monotonic()
        with leased(bucket, "lease", "two"):
            assert time.monotonic() - start >= 0.6
            with pytest.raises(StorageError, match="was lost"):
                old.check()
            assert old.is_lost
            old.release()  # changes nothing
            old_state = bucket.get("lease")
            assert old_state
            assert b"two" in old_state.body


def test_a_renewal_whose_answer_is_lost_does_not_lose_the_lease(bucket: S3Bucket, s3: Server) -> None:
    with suspended(bucket, "one") as lease:
        s3.faults(kind="lose answer", methods=["PUT"])
        for _ in range(2):
            with pytest.raises(StorageError, match="cannot write"):
                lease.check()
        s3.faults()
        lease.check()
        assert not lease.is_lost


def test_a_damaged_lease_is_taken_over_when_nobody_renews_it(bucket: S3Bucket) -> None:
    bucket.put("lease", b"x" * 100, None)
    with leased(bucket, "lease", "two") as held:
        assert held.progress.mirror == ""
