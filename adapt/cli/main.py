"""The command `dontstop`: a job, a chain, a search, or one of the small commands around them."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from adapt import __version__
from adapt.console import log, run_job
from adapt.errors import ConfigError
from adapt.job.registry import JOBS
from adapt.nearest import nearest
from adapt.shipped import recipes, spaces, unless_here

COMMANDS = {
    "chain": "run, plan, status, logs, report, submit, stop: several jobs from one file",
    "tune": "search good values for fields of a job, by trials on dev",
    "demo": "adapt a small language model to technical English, as a first look",
    "init": "look at your files, and write a configuration for them that runs as it is",
    "doctor": "check that this machine has what jobs need, and say how to mend what it lacks",
    "recipes": "list the recipes and search spaces that come with the package",
    "completion": "print a script that completes commands in a shell: completion bash|zsh|fish",
}
"""Commands next to the jobs, and what they do."""
HELP = ("-h", "--help", "help")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and ends the process, with 0 or with the exit code of the error.

    Args:
        arguments: the command and what follows it; None for those of this process.
    """
    if arguments is not None:
        sys.argv[1:] = arguments
    run_job(lambda: run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> None:
    """Runs a command.

    Args:
        arguments: the command and what follows it.

    Raises:
        ConfigError: there is no such command; names the nearest.
        AdaptError: as the command raises.
    """
    command, *rest = [*arguments] or ["help"]
    if command in HELP:
        print(usage())
    elif command == "--version":
        print(__version__)
    elif command in RUN:
        RUN[command](rest)
    elif command in JOBS:
        run_named(command, rest)
    else:
        raise ConfigError(f"there is no command {command}", nearest(command, [*JOBS, *COMMANDS]))


def usage() -> str:
    """The list of commands."""
    jobs = {name: job.kind.description.partition(" (")[0].rstrip(".") for name, job in JOBS.items()}
    width = max(map(len, [*jobs, *COMMANDS])) + 2

    def lines(commands: Mapping[str, str]) -> str:
        return "\n".join(f"  {name:{width}}{about[0].lower()}{about[1:]}" for name, about in commands.items())

    return (
        "dontstop adapts language models to domains and tasks without making them forget.\n\n"
        "  dontstop JOB --config FILE [--section.field VALUE ...]\n"
        "  dontstop COMMAND ...\n\n"
        f"Jobs:\n{lines(jobs)}\n\nCommands:\n{lines(COMMANDS)}\n\n"
        "dontstop JOB --help lists the fields of a job with their defaults."
    )


def run_named(name: str, arguments: Sequence[str]) -> None:
    """Runs a job by its name."""
    from adapt.cli.recipes import with_files
    from adapt.job.run import carry_out

    taken = with_files([*arguments], "--config", unless_here(recipes()))
    if name == "vocabulary":
        from adapt.job.vocabulary import told

        taken = told(taken)
    carry_out(JOBS[name], taken)


def _module(name: str) -> Callable[[list[str]], None]:
    """The `main` of a module of this package, which is loaded when it is needed."""
    return lambda arguments: import_module(f"adapt.cli.{name}").main(arguments)


def _recipes(arguments: list[str]) -> None:
    from adapt.cli.recipes import shipped_blocks
    from adapt.show.terminal import render_text

    if not arguments or arguments[0] in HELP:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else 120
        print(render_text(shipped_blocks(), width))
        return
    files = recipes() | spaces()
    if arguments[0] not in files:
        raise ConfigError(f"there is no recipe {arguments[0]}", nearest(arguments[0], files))
    print(files[arguments[0]].read_text(encoding="utf-8"), end="")


def _completion(arguments: list[str]) -> None:
    from adapt.cli.completion import script

    shell = arguments[0] if arguments else os.path.basename(os.environ.get("SHELL", ""))
    print(script(shell), end="")
    log('to use it now: eval "$(dontstop completion bash)"; for good, put that line into ~/.bashrc')


RUN: dict[str, Callable[[list[str]], None]] = {
    "chain": _module("chain"),
    "tune": _module("tune"),
    "demo": _module("demo"),
    "init": _module("init"),
    "doctor": _module("doctor"),
    "recipes": _recipes,
    "completion": _completion,
}
"""What each of COMMANDS does with the rest of its command line."""
