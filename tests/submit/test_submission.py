"""Tests that submitted work is checked, started once, followed, and retried after losses.

The work is a single job, or one job per stage.
"""

import sys
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest
from requests.exceptions import ConnectionError as RequestsConnectionError

from adapt.chain.chain_nodes import Node
from adapt.job import JOBS
from adapt.parse import parse_values
from adapt.submit import cluster_jobs, submission
from adapt.submit.cluster_jobs import JobCluster, is_bad_luck, stop
from adapt.submit.submission import check, run_as_jobs, run_cluster_command, run_small, submit
from adapt.submit.submit_order import ClusterCommand, Order
from adapt.support.errors import ClusterError, ConfigError, StageError, StorageError
from tests.submit.fakes import FakeClient, FakeJob

ORDER = Order("study", "ab" * 32, "chain", ["chain.yaml"], [])
OTHER = Order("study", "cd" * 32, "chain", ["chain.yaml"], [])


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(submission, "check", lambda cluster, order: made.append(order.name))
    monkeypatch.setattr(cluster_jobs.time, "sleep", lambda seconds: None)
    return made


def cluster(*ends: tuple[str, int | None], retries: int = 2) -> tuple[JobCluster, Any]:
    """Returns a cluster and its client.

    Each job ends after two listings with the next status and exit code of `ends`.
    """
    waiting, looks = list(ends), {}

    def happens(client: FakeClient) -> None:
        for job in client.found:
            looks[job.submission_id] = looks.get(job.submission_id, 0) + 1
            if not job.status.is_terminal() and looks[job.submission_id] > 2 and waiting:
                job.end(*waiting.pop(0))

    client: Any = FakeClient(happens)
    return JobCluster(client, {}, retries), client


def test_work_is_checked_then_started_and_followed_to_its_end(checks: list[str]) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    assert submit(made, ORDER).submission_id == ORDER.submission(1)
    assert checks == ["study"]
    assert client.found[0].entrypoint == "python jobs/chain.py run chain.yaml"


def test_drive_on_applies_to_the_work_and_not_to_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    submit(replace(made, drive_on="steady"), ORDER)
    assert client.found[0].entrypoint_resources == {"steady": 0.001}
    commands: list[tuple[str | None, str]] = []

    def looked(cluster: JobCluster, entrypoint: str, name: str) -> dict[str, Any]:
        commands.append((cluster.drive_on, entrypoint))
        return {"metrics": {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}}

    monkeypatch.setattr(submission, "run_small", looked)
    check(replace(made, drive_on="steady"), ORDER)
    assert commands == [(None, "python jobs/chain.py check chain.yaml --drive-on=steady")]


def test_a_second_submission_follows_the_first(checks: list[str]) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    client.submit_job(ORDER.entrypoint, ORDER.submission(1), {}, ORDER.metadata())
    assert submit(made, ORDER).submission_id == ORDER.submission(1)
    assert submit(made, ORDER).submission_id == ORDER.submission(1)  # the job has ended before this second submission
    assert len(client.found) == 1
    assert checks == []


def test_succeeded_work_runs_again_only_with_the_option_again() -> None:
    made, _ = cluster(("SUCCEEDED", 0), ("SUCCEEDED", 0))
    submit(made, ORDER)
    assert submit(made, ORDER, again=True).submission_id == ORDER.submission(2)


def test_a_deleted_job_does_not_make_a_submission_id_reappear() -> None:
    made, client = cluster(("FAILED", None), ("SUCCEEDED", 0))
    client.submit_job("", ORDER.submission(2), {}, ORDER.metadata())  # the first job was deleted
    client.found[0].end("FAILED", 2)
    assert submit(made, ORDER).submission_id == ORDER.submission(4)
    assert [job.submission_id for job in client.found] == [ORDER.submission(number) for number in (2, 3, 4)]


def test_a_job_that_another_submission_started_first_is_followed() -> None:
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


def test_lost_work_is_retried_a_limited_number_of_times() -> None:
    made, client = cluster(("FAILED", None), ("FAILED", -9), ("SUCCEEDED", 0))
    assert submit(made, ORDER).submission_id == ORDER.submission(3)
    made, client = cluster(("FAILED", None), ("FAILED", None), retries=1)
    with pytest.raises(ClusterError, match="study was lost 2 times"):
        submit(made, ORDER)
    assert len(client.found) == 2


def test_work_is_restarted_after_its_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_jobs, "dead_nodes", lambda address: {"head"})
    made, client = cluster(retries=0)
    for order in (ORDER, OTHER):
        client.submit_job("", order.submission(1), {}, order.metadata(), driver_node_id="head")
    client.happens = lambda client: [job.end("SUCCEEDED", 0) for job in client.found[2:]]
    assert submit(made, ORDER).submission_id == ORDER.submission(2)
    assert stop(made, "study") == []


def test_work_that_ray_reports_as_failed_is_restarted_after_its_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_jobs, "dead_nodes", lambda address: {"worker"})

    def happens(client: FakeClient) -> None:
        for job in client.found:
            lost = job.submission_id == ORDER.submission(1)
            job.driver_node_id = "worker" if lost else "head"
            job.end("FAILED" if lost else "SUCCEEDED", None if lost else 0)

    def log_of(name: str) -> str:
        if name == ORDER.submission(1):
            raise RuntimeError("Request failed with status code 500: cannot connect to the agent")
        return ""

    client: Any = FakeClient(happens)
    client.get_job_logs = log_of
    assert submit(JobCluster(client, {}, 2), ORDER).submission_id == ORDER.submission(2)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 7, 8, 70, 130])
def test_lasting_errors_are_not_retried_and_keep_their_exit_code(code: int) -> None:
    made, client = cluster(("FAILED", code))
    with pytest.raises(ClusterError) as caught:
        submit(made, ORDER)
    assert caught.value.exit_code == code
    assert len(client.found) == 1


def test_stopped_work_is_not_retried() -> None:
    made, client = cluster(("STOPPED", None))
    with pytest.raises(ClusterError, match="was stopped"):
        submit(made, ORDER)
    assert len(client.found) == 1


def test_a_lost_cluster_is_retried_and_a_wrong_configuration_is_not() -> None:
    job: Any = FakeJob("a", "", {})
    for code, expected in ((5, True), (None, True), (137, True), (-15, True), (2, False), (0, False)):
        job.end("FAILED" if code != 0 else "SUCCEEDED", code)
        assert is_bad_luck(job) is expected


def test_stopping_begins_with_jobs_that_start_others_and_waits() -> None:
    made, client = cluster(("STOPPED", None), ("STOPPED", None))
    client.submit_job("", ORDER.submission(1, "dapt"), {}, ORDER.metadata("dapt"))
    client.submit_job("", ORDER.submission(1), {}, ORDER.metadata())
    stopped = stop(made, "study")
    assert stopped == [ORDER.submission(1, "dapt"), ORDER.submission(1)]
    assert client.stopped[:2] == [ORDER.submission(1), ORDER.submission(1, "dapt")]
    assert stop(made, "study") == []


# --- short commands on the cluster


def test_a_short_command_returns_its_last_line_and_is_deleted() -> None:
    made, client = cluster(("SUCCEEDED", 0))
    client.get_job_logs = lambda name: 'looked\n{"stage": "check", "metrics": {"nodes": 2}}\n'
    client.tails = [[]] * 9
    assert run_small(made, "python x", "small")["metrics"] == {"nodes": 2}
    assert client.deleted == [client.found[0].submission_id]


def test_errors_on_the_cluster_are_raised_here_with_their_fix() -> None:
    made, client = cluster(("FAILED", 6))
    client.get_job_logs = lambda name: "joining\nStorageError: storage.root /x: there is no /\n  fix: mount it\n"
    client.tails = [[]] * 9
    with pytest.raises(StorageError, match=r"on the cluster: storage.root /x") as caught:
        run_small(made, "python x", "small")
    assert caught.value.fix == "mount it"


def test_a_cluster_without_the_packages_has_a_separate_error() -> None:
    made, client = cluster(("FAILED", 1))
    client.get_job_logs = lambda name: "ModuleNotFoundError: No module named 'torch'\n"
    client.tails = [[]] * 9
    with pytest.raises(ClusterError, match="No module named 'torch'") as caught:
        run_small(made, "python x", "small")
    assert "Dockerfile" in caught.value.fix


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "run_small", lambda *_: {"metrics": {"python": "3.8", "nodes": 1}})
    with pytest.raises(ClusterError, match=r"3\.8 on the cluster"):
        check(cluster()[0], ORDER)


CONFIG = parse_values({"corpus": {"paths": "a.jsonl"}}, JOBS["dapt"].kind, "test")


def order(**needs: str | None) -> Order:
    """Returns an order to run a chain. Each keyword argument maps a stage to the stage that it starts from."""
    nodes = {name: Node(name, JOBS["dapt"], {}, CONFIG, lambda _: CONFIG, start) for name, start in needs.items()}
    return Order("study", "ab" * 32, "chain", ["chain.yaml"], [CONFIG], nodes)


DIAMOND = order(a=None, b="a", c="a", d="b", e=None)


class Ends:
    """Ends every job when the jobs are listed for the second time.

    The exit code is the next code of the job's stage in `codes`, or 0 if no code remains.
    """

    def __init__(self, **codes: list[int | None]) -> None:
        self.codes, self.seen, self.most = codes, set[str](), 0

    def __call__(self, client: FakeClient) -> None:
        living = [job for job in client.found if not job.status.is_terminal()]
        self.most = max(self.most, len(living))
        for job in living:
            if job.submission_id in self.seen:
                codes = self.codes.get(job.metadata["dontstop_part"])
                code = codes.pop(0) if codes else 0
                job.end("SUCCEEDED" if code == 0 else "FAILED", code, "why")
            self.seen.add(job.submission_id)


def ran(client: Any, chain: Order = DIAMOND, at_once: int = 9, **given: Any) -> dict[str, int]:
    return run_as_jobs(JobCluster(client, {}, 1), chain, at_once, wait=lambda seconds: None, **given)


def parts(client: FakeClient) -> list[str]:
    return [job.metadata["dontstop_part"] for job in client.found]


def test_stages_start_when_their_inputs_are_finished() -> None:
    client = FakeClient(Ends())
    assert ran(client) == {"finished": 5, "begun": 5}
    begun = parts(client)
    assert sorted(begun) == ["a", "b", "c", "d", "e"]
    assert begun.index("a") < begun.index("b") < begun.index("d")
    assert begun.index("a") < begun.index("c")
    assert client.job("study-b").entrypoint == "python jobs/chain.py run chain.yaml --only=stage=b"


@pytest.mark.parametrize("at_once", [1, 2])
def test_independent_stages_run_at_once_up_to_a_limit(at_once: int, capsys: pytest.CaptureFixture[str]) -> None:
    ends = Ends()
    ran(FakeClient(ends), at_once=at_once)
    assert ends.most == at_once
    assert (
        f"waits: {at_once} jobs are running, which is the maximum (resources.stages_at_once)" in capsys.readouterr().err
    )


def test_a_lost_stage_is_retried_a_limited_number_of_times() -> None:
    client = FakeClient(Ends(b=[None, 0]))
    assert ran(client) == {"finished": 5, "begun": 6}
    with pytest.raises(
        StageError, match="1 stages failed, and 1 that depend on them were left out; the first failure: b: why"
    ):
        ran(FakeClient(Ends(b=[None, None, 0])))


def test_a_failure_leaves_out_only_dependent_stages() -> None:
    client = FakeClient(Ends(b=[2]))
    with pytest.raises(StageError, match="left out; the first failure: b"):
        ran(client)
    assert sorted(parts(client)) == ["a", "b", "c", "e"]


def test_a_second_run_reuses_running_and_succeeded_jobs() -> None:
    client = FakeClient(Ends())
    for part, status in (("a", "SUCCEEDED"), ("e", "RUNNING"), ("b", "FAILED")):
        client.submit_job("", DIAMOND.submission(1, part), {}, DIAMOND.metadata(part))
        client.found[-1].end(status, 2 if status == "FAILED" else 0)
    assert ran(client) == {"finished": 5, "begun": 3}
    assert sorted(parts(client)) == ["a", "b", "b", "c", "d", "e"]
    assert client.found[3].submission_id == DIAMOND.submission(2, "b")


def test_a_deleted_job_of_a_stage_does_not_make_a_submission_id_reappear() -> None:
    client = FakeClient(Ends())
    client.submit_job("", DIAMOND.submission(2, "a"), {}, DIAMOND.metadata("a"))
    client.found[0].end("FAILED", 2)
    assert ran(client, order(a=None)) == {"finished": 1, "begun": 1}
    assert client.found[1].submission_id == DIAMOND.submission(3, "a")


def test_lost_connections_neither_end_a_run_nor_start_a_stage_twice(capsys: pytest.CaptureFixture[str]) -> None:
    class Breaking(FakeClient):
        """Loses the first request to start a job, and the answer to the second."""

        starts = 0

        def submit_job(self, *values: Any, **named: Any) -> str:
            self.starts += 1
            if self.starts == 1:
                raise RequestsConnectionError("refused")
            started = super().submit_job(*values, **named)
            if self.starts == 2:
                self.found[-1].end("FAILED", None)  # a new listing would count this job as an earlier attempt
                raise RequestsConnectionError("reset")
            return started

    ends = Ends()

    def happens(client: FakeClient) -> None:
        if client.looks % 3 == 1:
            raise OSError("unreachable")
        ends(client)

    client = Breaking(happens)
    assert ran(client, order(a=None, b=None)) == {"finished": 2, "begun": 3}
    assert [job.submission_id for job in client.found] == [
        *(DIAMOND.submission(1, "a"), DIAMOND.submission(1, "b"), DIAMOND.submission(2, "a"))
    ]
    assert "its jobs continue, trying to reconnect" in capsys.readouterr().err


def test_a_cluster_that_stays_away_ends_a_run_with_an_error_that_allows_a_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def happens(client: FakeClient) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(cluster_jobs.Patience, "__init__", partialmethod(cluster_jobs.Patience.__init__, -1))
    with pytest.raises(ClusterError, match="has not answered") as caught:
        ran(FakeClient(happens))
    assert caught.value.exit_code not in cluster_jobs.LASTING


def test_with_the_option_again_all_jobs_are_started_again() -> None:
    client = FakeClient(Ends())
    ran(client)
    assert ran(client, again=True) == {"finished": 5, "begun": 5}


def test_an_interrupted_run_stops_its_jobs() -> None:
    def interrupted(client: FakeClient) -> None:
        if len(client.found) == 2:
            raise KeyboardInterrupt

    client = FakeClient(interrupted)
    with pytest.raises(KeyboardInterrupt):
        ran(client, order(a=None, b=None))
    assert sorted(client.stopped) == [job.submission_id for job in client.found]


def test_the_log_of_a_single_stage_is_shown_if_the_main_job_was_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, client = cluster(("SUCCEEDED", 0))
    client.submit_job("stage", ORDER.submission(1, "dapt"), {}, ORDER.metadata("dapt"))
    client.get_job_logs = lambda name: f"the log of {name}\n"
    client.found[0].end("SUCCEEDED", 0)
    monkeypatch.setattr(submission, "order_of", lambda rest: ORDER)
    monkeypatch.setattr(submission, "checked_cluster", lambda asked: made)
    run_cluster_command(ClusterCommand("logs", ["chain.yaml"]))
    assert f"the log of {ORDER.submission(1, 'dapt')}" in capsys.readouterr().err


def test_each_status_is_shown_as_it_comes_until_the_job_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def happens(client: FakeClient) -> None:
        for job in client.found[1:]:
            job.end("SUCCEEDED", 0)

    def slept(seconds: float) -> None:
        shown.append(capsys.readouterr().err)
        if len(shown) == 2:
            client.found[0].end("FAILED", 2)

    def broken(name: str) -> bool:
        raise ConnectionError("refused")

    client: Any = FakeClient(happens, [FakeJob(ORDER.submission(1), "", ORDER.metadata())])
    metrics = '{"path": "/runs", "metrics": {"finished": 1, "running": 0, "waiting": 2}}'
    client.get_job_logs = lambda name: f"table {len(client.found) - 1}\n{metrics}\n"
    client.delete_job = broken
    monkeypatch.setattr(submission.time, "sleep", slept)
    monkeypatch.setattr(submission, "order_of", lambda rest: ORDER)
    monkeypatch.setattr(submission, "checked_cluster", lambda asked: JobCluster(client, {}))
    run_cluster_command(ClusterCommand("status", ["chain.yaml"], switches=frozenset({"follow"})))
    last = capsys.readouterr().err
    assert [f"table {number}\n" in text for number, text in enumerate([*shown, last], 1)] == [True] * 3
    assert "running" in shown[1]
    assert "failed" in last
    assert "no longer followed, because no job of study is running" in last
    assert {job.entrypoint for job in client.found[1:]} == {"python jobs/chain.py status chain.yaml"}


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_chain_without_jobs_is_followed_while_stages_are_waiting(
    monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    counts = [{"finished": 0, "running": 0, "waiting": waiting}, {"finished": 2, "running": 0, "waiting": 0}]
    monkeypatch.setattr(submission, "run_small", lambda *_: {"path": "/runs", "metrics": counts.pop(0)})
    monkeypatch.setattr(submission, "order_of", lambda rest: ORDER)
    monkeypatch.setattr(submission, "checked_cluster", lambda asked: JobCluster(FakeClient(), {}))  # type: ignore[arg-type]
    run_cluster_command(ClusterCommand("status", ["chain.yaml"], switches=frozenset({"follow"})))
    assert len(counts) == (0 if waiting else 1)
