"""Tests that messages reach a webhook, and that a webhook that fails or hangs does not disturb a job."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from adapt.config import NotifyConfig
from adapt.runner import notifications
from adapt.runner.notifications import announce, check_webhook, notifying, wait_until_sent
from adapt.support.errors import BudgetError, ConfigError, DataError

VARIABLE = "TEST_WEBHOOK"
JSON, SLACK = NotifyConfig(VARIABLE), NotifyConfig(VARIABLE, "slack")


class Receiver(HTTPServer):
    """A webhook on this machine."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        """Status codes of the next responses. If the list is empty, the status is 200."""
        self.received: list[dict] = []
        self.location = ""
        """Address to which responses redirect, or empty."""
        self.may_answer = threading.Event()
        self.may_answer.set()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.may_answer.wait(20)
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    server = Receiver()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{server.server_port}/secret-part")
    monkeypatch.setattr(notifications, "PAUSE_S", 0.01)
    yield server
    server.may_answer.set()
    server.shutdown()
    server.server_close()


def run(settings: NotifyConfig, error: BaseException | None = None) -> None:
    with notifying(settings, "dapt papers") as finished:
        if error:
            raise error
        finished("The loss fell.", Path("/runs/export/papers"))
    wait_until_sent()


def test_a_finished_job_sends_its_first_sentence_and_its_folder(webhook: Receiver) -> None:
    run(JSON)
    (message,) = webhook.received
    assert (message["event"], message["about"], message["path"]) == ("finish", "dapt papers", "/runs/export/papers")
    assert message["text"].startswith("The loss fell. It took ")
    assert message["seconds"] < 10


def test_the_form_of_slack_has_one_text(webhook: Receiver) -> None:
    run(SLACK)
    (message,) = webhook.received
    assert [*message] == ["text"]
    assert message["text"].startswith("*dontstop dapt papers* finished. The loss fell.")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DataError("a.jsonl is broken", "delete it"), "a.jsonl is broken"),
        (KeyboardInterrupt(), "stopped by Ctrl-C or a signal"),
        (ValueError("no"), "ValueError: no"),
    ],
    ids=["error of the user", "stopped", "error of the program"],
)
def test_a_failure_is_sent_and_still_raised(webhook: Receiver, error: BaseException, text: str) -> None:
    with pytest.raises(type(error)):
        run(JSON, error)
    wait_until_sent()
    (message,) = webhook.received
    assert message["event"] == "failure"
    assert text in message["text"]


def test_a_spent_budget_is_its_own_event(webhook: Receiver) -> None:
    with pytest.raises(BudgetError):
        run(SLACK, BudgetError("the budget is spent (2 device-hours of 2)", "raise it"))
    wait_until_sent()
    (message,) = webhook.received
    assert message["text"].startswith("*dontstop dapt papers* stopped at its budget. the budget is spent (2 device-")


def test_a_stall_is_announced_by_the_job_that_runs(webhook: Receiver) -> None:
    announce("stall", "nothing runs")
    with notifying(JSON, "chain study"):
        announce("stall", "Rank 1 on node-7 made no progress for 90 s.", rank=1)
    announce("stall", "nothing runs any more")
    wait_until_sent()
    (message,) = webhook.received
    assert (message["event"], message["about"], message["rank"]) == ("stall", "chain study", 1)
    assert message["text"] == "Rank 1 on node-7 made no progress for 90 s."


def test_messages_have_no_credentials(webhook: Receiver) -> None:
    with pytest.raises(DataError):
        run(JSON, DataError("s3://key:password@bucket is gone"))
    wait_until_sent()
    assert "password" not in json.dumps(webhook.received)


def test_events_that_are_not_asked_for_are_not_sent(webhook: Receiver) -> None:
    run(NotifyConfig(VARIABLE, events=["failure"]))
    run(NotifyConfig())
    with notifying(JSON, "a job in which nothing ran"):
        pass
    wait_until_sent()
    assert webhook.received == []


def test_a_message_is_sent_again_after_an_error_of_the_receiver(webhook: Receiver, capsys) -> None:
    webhook.answers = [500, 429]
    run(JSON)
    assert len(webhook.received) == 3
    assert "notify" not in capsys.readouterr().err


@pytest.mark.parametrize(("answers", "attempts"), [([500] * 3, 3), ([404], 1)])
def test_a_message_that_cannot_be_sent_is_logged_without_the_address(
    webhook: Receiver, capsys, answers: list[int], attempts: int
) -> None:
    webhook.answers = [*answers]
    run(JSON)
    said = capsys.readouterr().err
    assert len(webhook.received) == attempts
    assert f"the webhook answered {answers[0]}" in said
    assert "secret-part" not in said


def test_a_redirection_does_not_bring_the_address_into_the_log(webhook: Receiver, capsys) -> None:
    """The error of urllib contains the secret address of the redirection, so its text must not be logged."""
    webhook.answers, webhook.location = [302], "file:///secret-part"
    run(JSON)
    said = capsys.readouterr().err
    assert "the webhook answered 302 Found" in said
    assert "secret-part" not in said


def test_a_webhook_that_hangs_does_not_hold_up_the_job(webhook: Receiver, capsys) -> None:
    webhook.may_answer.clear()
    began = time.monotonic()
    with notifying(JSON, "dapt papers") as finished:
        finished("The loss fell.", Path("/runs"))
    wait_until_sent(0.1)
    # the job waits for less than the time limit for a response
    assert time.monotonic() - began < notifications.ANSWER_S
    assert "ends before the webhook has answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("", f"variable {VARIABLE}, which is not set"),
        ("file:///etc/passwd", "no address that begins with https://"),
    ],
)
def test_a_run_without_an_address_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, value: str, fault: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match=fault), notifying(JSON, "dapt papers"):
        pytest.fail("the run has begun")


def test_an_address_in_the_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"notify\.webhook holds an address"):
        check_webhook(NotifyConfig("https://hooks.example/T0/B0"))
    check_webhook(JSON)
