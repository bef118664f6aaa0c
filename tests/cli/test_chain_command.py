"""Tests `dontstop chain`: which verbs end when their terminal is closed."""

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
