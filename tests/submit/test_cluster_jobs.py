"""Tests connections to a dashboard, and following a job to its end across lost connections."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import ray

from adapt.submit import cluster_jobs
from adapt.submit.cluster_jobs import ADDRESS, Follower, Patience, address_from, connected, is_bad_luck
from adapt.support.errors import ClusterError
from tests.submit.fakes import FakeClient, FakeJob


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, object]]]:
    """Yields the address of a web server, and a mapping that sets its answer."""
    said: dict[str, object] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(str(said.get("code", 200))))
            self.end_headers()
            self.wfile.write(str(said.get("body", "")).encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", said
    server.shutdown()
    server.server_close()


def test_the_option_comes_before_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(ADDRESS, "http://a:1")
    assert address_from("http://b:2/") == "http://b:2"
    assert address_from(None) == "http://a:1"
    monkeypatch.delenv(ADDRESS)
    with pytest.raises(ClusterError, match="no cluster is named"):
        address_from(None)


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://host:10001", "http://", "http://me:word@host:8265"])
def test_an_address_that_is_not_a_dashboards_is_refused(address: str) -> None:
    with pytest.raises(ClusterError) as caught:
        address_from(address)
    assert "word@" not in str(caught.value)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"no cluster answers at http://127\.0\.0\.1:9: "):
        connected("http://127.0.0.1:9")


def test_a_dashboard_that_stays_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_jobs, "_PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ClusterError, match="did not answer 3 req"):
        connected(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_server_that_is_not_a_dashboard_is_an_error(answers: tuple[str, dict[str, object]]) -> None:
    address, said = answers
    said["body"] = "<html>hello</html>"
    with pytest.raises(ClusterError, match="not a Ray dashboard"):
        connected(address)


@pytest.mark.parametrize("code", [401, 403])
def test_a_missing_or_wrong_token_is_an_error(answers: tuple[str, dict[str, object]], code: int) -> None:
    address, said = answers
    said.update(code=code, body="Invalid authentication token")
    with pytest.raises(ClusterError, match="refuses access") as caught:
        connected(address)
    assert "RAY_AUTH_MODE=token" in caught.value.fix


@pytest.mark.parametrize("mode", ["token", "disabled", None])
def test_a_cluster_without_a_token_is_refused_unless_the_user_allows_it(
    answers: tuple[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    address, said = answers
    said["body"] = json.dumps({"version": "4", "ray_version": ray.__version__})
    monkeypatch.setattr(
        cluster_jobs, "JobSubmissionClient", lambda address: None
    )  # the real client would use the mode that Ray read at its import
    monkeypatch.setattr(cluster_jobs, "version_at", lambda client: ray.__version__)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    else:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode == "disabled":
        connected(address)
        return
    with pytest.raises(ClusterError, match="does not require a token") as caught:
        connected(address)
    assert "RAY_AUTH_MODE=token" in caught.value.fix
    for unclear in (302, 404, 503):
        said["code"] = unclear
        with pytest.raises(ClusterError, match=f"may not require a token .*HTTP status {unclear}"):
            connected(address)
    said["code"] = 401
    connected(address)


def test_another_version_of_ray_is_an_error(answers: tuple[str, dict[str, object]]) -> None:
    address, said = answers
    said["body"] = json.dumps({"version": "4", "ray_version": "2.55.1"})
    with pytest.raises(ClusterError, match=rf"Ray is {ray.__version__} here and 2\.55\.1 on the cluster") as caught:
        connected(address)
    assert "ray[default]==2.55.1" in caught.value.fix


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_jobs.time, "sleep", lambda seconds: None)


def followed(client: Any, limit_s: float = 100) -> tuple[Any, str]:
    shown: list[str] = []
    ended = Follower(client, "a", shown.append, patience=Patience(limit_s)).until_end()
    return ended, "".join(shown)


def ends_at_look(number: int, status: str = "SUCCEEDED") -> Any:
    looks = iter(range(number))

    def happens(client: FakeClient) -> None:
        if next(looks, None) is None:
            client.found[0].end(status)

    return happens


def test_a_lost_connection_neither_repeats_nor_loses_text() -> None:
    client = FakeClient(ends_at_look(3), [FakeJob("a", "", {})])
    client.tails = [["one\n", "tw", ConnectionError("gone")], ["one\n", "two\nth", RuntimeError("closed")]]
    client.logs["a"] = "one\ntwo\nthree\n"
    ended, shown = followed(client)
    assert ended.status == "SUCCEEDED"
    assert shown == "one\ntwo\nthree\n"


def test_the_rest_of_a_log_is_read_after_a_connection_ended_early() -> None:
    client = FakeClient(ends_at_look(2), [FakeJob("a", "", {})], tails=[["half"], ["half of"]])
    client.logs["a"] = "half of it"
    assert followed(client)[1] == "half of it"


def test_a_lost_cluster_is_contacted_again(capsys: pytest.CaptureFixture[str]) -> None:
    fails = iter([ConnectionError("refused"), ConnectionError("refused")])

    def happens(client: FakeClient) -> None:
        if error := next(fails, None):
            raise error
        client.found[0].end("SUCCEEDED")

    assert followed(FakeClient(happens, [FakeJob("a", "", {})]))[0].status == "SUCCEEDED"
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("the connection to the cluster is lost (ConnectionError); its jobs continue")
    assert said[1:] == ["the cluster answers again"]


def test_a_cluster_lost_for_too_long_is_an_error() -> None:
    def happens(client: FakeClient) -> None:
        raise ConnectionError("refused")

    with pytest.raises(ClusterError, match="has not answered"):
        followed(FakeClient(happens, [FakeJob("a", "", {})]), limit_s=-1)


def test_a_job_that_the_cluster_has_forgotten_is_none() -> None:
    assert followed(FakeClient())[0] is None


def test_a_job_whose_node_is_gone_counts_as_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = iter([set(), set(), {"head"}])  # the cluster reports the lost node only in the third request
    monkeypatch.setattr(cluster_jobs, "dead_nodes", lambda address: next(gone))
    client: Any = FakeClient(found=[FakeJob("a", "", {}, driver_node_id="head")])
    client.tails = [["one\n", ConnectionError("gone")], [RuntimeError("cannot connect to its node")]]
    client.get_job_logs = lambda name: pytest.fail("its log is out of reach")
    ended, shown = followed(client)
    assert (ended.status, ended.message) == ("FAILED", cluster_jobs.ORPHANED)
    assert is_bad_luck(ended)
    assert shown == "one\n"
    # one line about the lost connection, and one about the lost node
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_an_ended_job_is_returned_without_its_log_if_its_node_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = iter([set(), {"worker"}])  # the cluster reports the lost node only in the second request
    monkeypatch.setattr(cluster_jobs, "dead_nodes", lambda address: next(gone))
    client: Any = FakeClient(found=[FakeJob("a", "", {}, driver_node_id="worker")])
    client.found[0].end("FAILED", message="the job supervisor died")

    def log_of(name: str) -> str:
        raise RuntimeError("Request failed with status code 500: cannot connect to the agent")

    client.get_job_logs = log_of
    ended, shown = followed(client)
    assert is_bad_luck(ended)
    assert (ended.message, shown) == ("the job supervisor died", "")
    assert "the end of the log of a may be missing, because the node" in capsys.readouterr().err


def test_why_a_job_waits_is_logged_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cluster_jobs, "_SAID_AFTER_S", -1.0)
    client = FakeClient(ends_at_look(4), [FakeJob("a", "", {})])
    client.found[0].end("PENDING", message="It waits for resources.")
    followed(client)
    assert capsys.readouterr().err == "a waits: It waits for resources.\n"


def test_following_ends_when_the_reader_closes_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(lambda client: None, [FakeJob("a", "", {})])  # the job never ends
    client.tails = [["one\n", "two\n"]]
    monkeypatch.setattr(cluster_jobs, "is_unread", lambda: True)
    with pytest.raises(cluster_jobs.Unread):
        Follower(client, "a", cluster_jobs.show_while_read).until_end()  # type: ignore[arg-type]
