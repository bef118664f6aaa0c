"""Tests the help texts, and the options `--print_config` and `--debug`."""

from tests.jobs.commands import Run


def test_the_chain_shows_its_usage(run: Run) -> None:
    ran = run("chain.py", "--help")
    assert ran.code == 0
    assert "dontstop chain plan FILE" in ran.out


def test_debug_shows_the_stack(run: Run) -> None:
    ran = run("dapt.py", "--debug")
    assert ran.code == 2
    assert "Traceback (most recent call last)" in ran.err
    assert ran.err.splitlines()[-2].startswith("ConfigError: corpus.paths is empty")


def test_help_and_print_config_go_to_stdout(run: Run) -> None:
    shown = run("dapt.py", "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "--training.learning_rate" in shown.out
    shown = run("dapt.py", "--print_config", "--training.learning_rate=0.25")
    assert (shown.code, shown.err) == (0, "")
    assert "  learning_rate: 0.25\n" in shown.out
