"""Work is checked, started once, followed, and begun again where it was bad luck."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from adapt.errors import ClusterError, ConfigError, StorageError
from adapt.submit import follow, jobs, orphans, small
from adapt.submit import submit as submitting
from adapt.submit.jobs import JobCluster, is_bad_luck, stop
from adapt.submit.order import Order
from adapt.submit.small import check, run_small
from adapt.submit.submit import submit
from tests.submit.fakes import FakeClient, FakeJob

ORDER = Order("study", "ab" * 32, "chain", ["chain.yaml"], [])
OTHER = Order("study", "cd" * 32, "chain", ["chain.yaml"], [])


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(submitting, "check", lambda cluster, order: made.append(order.name))
    for module in (follow, jobs):
        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return made


def cluster(*ends: tuple[str, int | None], retries: int = 2) -> tuple[JobCluster, Any]:
    """A cluster whose jobs end like this, one after another, two looks after they have begun."""
    waiting, looks = list(ends), {}

    def happens(client: FakeClient) -> None:
        for job in client.found:
            looks[job.submission_id] = looks.get(job.submission_id, 0) + 1
            if not job.status.is_terminal() and looks[job.submission_id] > 2 and waiting:
                job.end(*waiting.pop(0))

    client: Any = FakeClient(happens)
    return JobCluster(client, {}, retries), client


def test_work_is_checked_then_started_and_its_end_handed_back(checks: list[str]) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    assert submit(made, ORDER).submission_id == ORDER.submission(1)
    assert checks == ["study"]
    assert client.found[0].entrypoint == "python jobs/chain.py run chain.yaml"


def test_work_drives_itself_where_it_is_told_to_and_looks_from_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    submit(replace(made, drive_on="steady"), ORDER)
    assert client.found[0].entrypoint_resources == {"steady": 0.001}
    commands: list[tuple[str | None, str]] = []

    def looked(cluster: JobCluster, entrypoint: str, name: str) -> dict[str, Any]:
        commands.append((cluster.drive_on, entrypoint))
        return {"metrics": {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}}

    monkeypatch.setattr(small, "run_small", looked)
    check(replace(made, drive_on="steady"), ORDER)
    assert commands == [(None, "python jobs/chain.py check chain.yaml --drive-on=steady")]


def test_a_second_submission_follows_the_first(checks: list[str]) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    client.submit_job(ORDER.entrypoint, ORDER.submission(1), {}, ORDER.metadata())
    assert submit(made, ORDER).submission_id == ORDER.submission(1)
    assert submit(made, ORDER).submission_id == ORDER.submission(1)  # it has ended by now
    assert len(client.found) == 1
    assert checks == []


def test_what_has_ended_well_begins_again_when_asked_to() -> None:
    made, _ = cluster(("SUCCEEDED", 0), ("SUCCEEDED", 0))
    submit(made, ORDER)
    assert submit(made, ORDER, again=True).submission_id == ORDER.submission(2)


def test_somebody_who_was_faster_is_followed() -> None:
    made, client = cluster()
    client.submit_job("", ORDER.submission(1), {}, ORDER.metadata())
    made.start("", ORDER.submission(1), ORDER.metadata())
    assert len(client.found) == 1


def test_a_name_in_use_by_another_configuration_is_refused(checks: list[str]) -> None:
    made, client = cluster()
    client.submit_job("", OTHER.submission(1), {}, OTHER.metadata())
    with pytest.raises(ConfigError, match=f"another configuration, as {OTHER.submission(1)}"):
        submit(made, ORDER)
    assert len(client.found) == 1
    assert checks == []


def test_a_name_is_free_when_its_work_has_ended() -> None:
    made, client = cluster(("SUCCEEDED", 0))
    client.found.append(FakeJob("old", "", OTHER.metadata()))
    client.found[0].end("SUCCEEDED")
    assert submit(made, ORDER).submission_id == ORDER.submission(1)


def test_bad_luck_is_tried_again_so_often() -> None:
    made, client = cluster(("FAILED", None), ("FAILED", -9), ("SUCCEEDED", 0))
    assert submit(made, ORDER).submission_id == ORDER.submission(3)
    made, client = cluster(("FAILED", None), ("FAILED", None), retries=1)
    with pytest.raises(ClusterError, match="study was lost 2 times"):
        submit(made, ORDER)
    assert len(client.found) == 2


def test_work_whose_node_is_gone_begins_again_though_ray_says_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "dead_nodes", lambda address: {"head"})
    made, client = cluster(retries=0)
    for order in (ORDER, OTHER):
        client.submit_job("", order.submission(1), {}, order.metadata(), driver_node_id="head")
    client.happens = lambda client: [job.end("SUCCEEDED", 0) for job in client.found[2:]]
    assert submit(made, ORDER).submission_id == ORDER.submission(2)
    assert stop(made, "study") == []


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 7, 8, 70, 130])
def test_errors_that_would_come_again_end_it_with_their_code(code: int) -> None:
    made, client = cluster(("FAILED", code))
    with pytest.raises(ClusterError) as caught:
        submit(made, ORDER)
    assert caught.value.exit_code == code
    assert len(client.found) == 1


def test_what_was_stopped_is_not_begun_again() -> None:
    made, client = cluster(("STOPPED", None))
    with pytest.raises(ClusterError, match="was stopped"):
        submit(made, ORDER)
    assert len(client.found) == 1


def test_a_lost_cluster_is_bad_luck_and_a_wrong_configuration_is_not() -> None:
    job: Any = FakeJob("a", "", {})
    for code, expected in ((5, True), (None, True), (137, True), (-15, True), (2, False), (0, False)):
        job.end("FAILED" if code != 0 else "SUCCEEDED", code)
        assert is_bad_luck(job) is expected


def test_stopping_ends_those_that_start_others_first_and_waits() -> None:
    made, client = cluster(("STOPPED", None), ("STOPPED", None))
    client.submit_job("", ORDER.submission(1, "dapt"), {}, ORDER.metadata("dapt"))
    client.submit_job("", ORDER.submission(1), {}, ORDER.metadata())
    stopped = stop(made, "study")
    assert stopped == [ORDER.submission(1, "dapt"), ORDER.submission(1)]
    assert client.stopped[:2] == [ORDER.submission(1), ORDER.submission(1, "dapt")]
    assert stop(made, "study") == []


# --- small commands


def test_a_small_command_hands_back_its_last_line_and_leaves_nothing() -> None:
    made, client = cluster(("SUCCEEDED", 0))
    client.get_job_logs = lambda name: 'looked\n{"stage": "check", "metrics": {"nodes": 2}}\n'
    client.tails = [[]] * 9
    assert run_small(made, "python x", "small")["metrics"] == {"nodes": 2}
    assert client.deleted == [client.found[0].submission_id]


def test_what_a_cluster_refuses_is_refused_here_with_its_fix() -> None:
    made, client = cluster(("FAILED", 6))
    client.get_job_logs = lambda name: "joining\nStorageError: storage.root /x: there is no /\n  fix: mount it\n"
    client.tails = [[]] * 9
    with pytest.raises(StorageError, match=r"on the cluster: storage.root /x") as caught:
        run_small(made, "python x", "small")
    assert caught.value.fix == "mount it"


def test_a_cluster_without_the_packages_is_told_from_one_that_refuses() -> None:
    made, client = cluster(("FAILED", 1))
    client.get_job_logs = lambda name: "ModuleNotFoundError: No module named 'torch'\n"
    client.tails = [[]] * 9
    with pytest.raises(ClusterError, match="No module named 'torch'") as caught:
        run_small(made, "python x", "small")
    assert "Dockerfile" in caught.value.fix


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "run_small", lambda *_: {"metrics": {"python": "3.8", "nodes": 1}})
    with pytest.raises(ClusterError, match=r"3\.8 on the cluster"):
        check(cluster()[0], ORDER)
