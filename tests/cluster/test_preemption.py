"""Tests that preemption notices of clouds reach Ray in time, and that pods wait until their training is saved."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path

import pytest

from cluster import preemption
from cluster.preemption import Notice, cloud_here, is_training, stop, watch
from tests.cluster.metadata import Metadata, served

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "_TRIES", 2)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # requests to the metadata server must not use this proxy


@pytest.fixture(params=["aws", "google", "azure"])
def metadata(request: pytest.FixtureRequest) -> Iterator[Metadata]:
    with served(request.param) as metadata:
        yield metadata


def test_the_cloud_is_recognized_by_its_metadata_server(metadata: Metadata) -> None:
    found = cloud_here(metadata.address)
    assert found
    assert found[0] == metadata.cloud
    assert found[1](metadata.address) is None


def test_a_notice_is_passed_to_ray_with_its_deadline(metadata: Metadata) -> None:
    told: list[Notice] = []

    def drain(notice: Notice) -> bool:
        told.append(notice)
        return len(told) > 1  # Ray does not answer the first notice

    def announced(cloud: str) -> None:
        metadata.announce(25)

    usual = preemption.say_to_log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preemption, "say_to_log", lambda message: (usual(message), announced(message)))
        said = watch(metadata.address, drain, look_s=0.01)
    assert len(told) == 2
    assert all(20 <= notice.seconds <= 30 for notice in told)
    assert "told Ray that this node will be terminated" in said


def test_events_of_other_machines_and_harmless_events_are_ignored() -> None:
    with served("azure") as metadata:
        metadata.announce(25)
        assert preemption.azure(metadata.address)
        metadata.event = "Freeze"
        assert preemption.azure(metadata.address) is None
        metadata.event, metadata.machines = "Preempt", ["worker-4"]
        assert preemption.azure(metadata.address) is None


def test_a_started_event_has_a_short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with served("azure") as metadata:
        metadata.announce(-5)
        notice = preemption.azure(metadata.address)
        assert notice
        assert notice.seconds == 0


def test_a_machine_without_a_cloud_is_not_watched() -> None:
    assert "no metadata server of AWS, Google Cloud or Azure answers" in watch(
        "http://127.0.0.1:1", lambda notice: True, look_s=0
    )
    with served("nobody") as metadata:
        assert "no metadata server of AWS, Google Cloud or Azure answers" in watch(
            metadata.address, lambda notice: True, look_s=0
        )


def test_a_failing_metadata_server_is_contacted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, OSError("timed out"), ValueError("no JSON"), IncompleteRead(b"TR"), Notice(30, "now")])

    def ask(metadata: str) -> Notice | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(preemption, "CLOUDS", {"some": ask})
    assert watch("", lambda notice: True, look_s=0).startswith("now")


def test_a_training_pod_waits_until_the_training_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption.time, "sleep", lambda seconds: None)
    trains = iter([True, True, True, False, False])
    told: list[Notice] = []
    said = stop(110, lambda notice: told.append(notice) is None, lambda: next(trains))
    assert said == "no training runs on this node any more"
    (notice,) = told
    assert 100 < notice.seconds <= 110


def test_an_idle_pod_ends_at_once_and_a_busy_one_within_its_limit() -> None:
    assert stop(110, lambda notice: pytest.fail("it is idle"), lambda: False) == "no training runs on this node"
    assert (
        stop(0, lambda notice: True, lambda: True) == "the time limit has passed, and training still runs on this node"
    )
    assert stop(0, lambda notice: False, lambda: True) == "Ray could not be told that this node will be terminated"


def test_training_processes_are_recognized_by_their_title(monkeypatch: pytest.MonkeyPatch) -> None:
    # the process id distinguishes this title from other training runs on the machine
    title = f"ray::RayTrainWorker-{os.getpid()}"
    assert title.encode().startswith(preemption.TRAINS)
    monkeypatch.setattr(preemption, "TRAINS", title.encode())
    assert not is_training()
    with subprocess.Popen(["bash", "-c", f"exec -a '{title}.run' sleep 600"]) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(title.encode()):
                pass
            assert is_training()
        finally:
            process.kill()
    assert not is_training()


def test_one_process_watches_a_node(tmp_path: Path) -> None:
    with served("google") as metadata:
        command = [sys.executable, str(ROOT / "cluster" / "preemption.py"), "watch", "--metadata", metadata.address]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as first:
            try:
                assert first.stderr
                assert "asking the metadata server of google" in first.stderr.readline()
                second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
                assert (second.returncode, "another process already watches" in second.stderr) == (0, True)
            finally:
                first.kill()
