"""Tests `dontstop chain`: which verbs end when their terminal is closed, and which verbs need --address."""

import signal
from collections.abc import Sequence

import pytest

from adapt.cli import chain_command
from adapt.cli.main import run_command
from adapt.submit.submit_order import Order
from adapt.support.errors import ConfigError


@pytest.mark.parametrize(("command", "action"), [(["report", "--serve"], signal.SIG_DFL), (["status"], signal.SIG_IGN)])
def test_only_the_server_of_the_report_ends_with_its_terminal(
    monkeypatch: pytest.MonkeyPatch, command: list[str], action: signal.Handlers
) -> None:
    seen = []

    def order(arguments: Sequence[str]) -> Order:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise ConfigError("nothing to show", "stop here")

    monkeypatch.setattr(chain_command, "order_of", order)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `run_job` sets it
    try:
        with pytest.raises(ConfigError, match="nothing to show"):
            run_command(["chain", *command, "chain.yaml"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [action]


@pytest.mark.parametrize("verb", ["status", "logs"])
def test_status_and_logs_read_a_cluster_only_with_the_option_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    def order(arguments: Sequence[str]) -> Order:
        raise ConfigError("it reads this machine", "stop here")

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setattr(chain_command, "order_of", order)
    with pytest.raises(ConfigError, match="it reads this machine"):
        chain_command.main([verb, "chain.yaml"])
    chain_command.main(["--help"])
    said = capsys.readouterr().out
    assert "but status and logs read storage.root on this machine" in said
    assert f"dontstop chain {verb} FILE {'[STAGE] ' if verb == 'logs' else ''}--address URL" in said


def test_errors_of_a_plan_name_the_help_of_the_job() -> None:
    with pytest.raises(ConfigError, match=r"training\.max_steps takes int or null") as caught:
        run_command(["chain", "plan", "--job", "tapt", "--training.max_steps", "many"])
    assert "see `dontstop tapt --help`" in caught.value.fix
