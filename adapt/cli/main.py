"""Implements the entry point of the command `dontstop`, which runs jobs, chains, searches and small commands."""

import ast
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from adapt import __version__
from adapt.cli.init import OPTIONS
from adapt.config import Config, flat
from adapt.handover.push import push_folder
from adapt.job import JOBS
from adapt.job.job_run import carry_out
from adapt.job.measuring_jobs import with_action
from adapt.parse.keys import option_sections
from adapt.show.blocks import Block, Table, TextBlock
from adapt.show.renderers import render_text
from adapt.support.errors import ConfigError, nearest
from adapt.support.paths import recipes, spaces, user_path
from adapt.terminal.console import finish, log, run_job

COMMANDS = {
    "chain": "run several jobs from one file: run, plan, status, logs, report, submit, stop",
    "tune": "search for good values of a job's fields by trials that are scored on the dev split",
    "demo": "adapt a small language model to technical English, as a first look",
    "init": "look at your files and write a configuration for them that runs without changes",
    "doctor": "check that this machine has what jobs need, and say how to fix what it lacks",
    "push": "send an exported model to the Hugging Face Hub",
    "recipes": "list the recipes and search spaces that come with the package",
    "completion": "print a script that completes commands in a shell: completion bash|zsh|fish",
}
"""Descriptions of the commands that are not jobs, keyed by the name of the command."""
HELP = ("-h", "--help", "help")
SPACE = "spaces/"
"""Prefix of search spaces' names in `dontstop recipes`, because a search space and a recipe may have the same name."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and ends the process, with exit code 0 or the exit code of the error.

    Args:
        arguments: the command and its arguments, or None to use the arguments of this process.
    """
    if arguments is not None:
        sys.argv[1:] = arguments
    run_job(lambda: run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> None:
    """Runs the command that a command line names.

    Args:
        arguments: the command and its arguments.

    Raises:
        ConfigError: the command does not exist. The message names the nearest command.
        AdaptError: the command fails.
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
    """Returns the list of jobs and commands."""
    jobs = {name: job.kind.description.partition(" (")[0].rstrip(".") for name, job in JOBS.items()}
    width = max(map(len, [*jobs, *COMMANDS])) + 2

    def lines(commands: Mapping[str, str]) -> str:
        return "\n".join(f"  {name:{width}}{about[0].lower()}{about[1:]}" for name, about in commands.items())

    return (
        "dontstop adapts language models to domains and tasks without making them forget.\n\n"
        "  dontstop JOB --config FILE [--section.field VALUE ...]\n"
        "  dontstop COMMAND ...\n\n"
        f"Jobs:\n{lines(jobs)}\n\nCommands:\n{lines(COMMANDS)}\n\n"
        "dontstop JOB --help lists the fields of a job with their types, ranges and defaults.\n"
        "dontstop chain plan --job JOB --config FILE shows what a job would run; nothing runs."
    )


def run_named(name: str, arguments: Sequence[str]) -> None:
    """Runs the job with the given name."""
    carry_out(JOBS[name], with_action([*arguments]) if name == "vocabulary" else [*arguments])


def _module(name: str) -> Callable[[list[str]], None]:
    """Returns a function that loads a module of this package and calls the module's `main`."""
    return lambda arguments: import_module(f"adapt.cli.{name}").main(arguments)


def _recipes(arguments: list[str]) -> None:
    arguments = _without_debug(arguments)
    if not arguments or arguments[0] in HELP:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else 120
        print(render_text(shipped_blocks(), width))
        return
    name, searched = arguments[0], spaces()
    files = searched | {f"{SPACE}{space}": file for space, file in searched.items()} | recipes()
    if name not in files:
        raise ConfigError(f"there is no recipe {name}", nearest(name, files))
    print(files[name].read_text(encoding="utf-8"), end="")
    if name in recipes() and name in searched:
        log(f"A search space has the same name. To print it, run: dontstop recipes {SPACE}{name}")


def _completion(arguments: list[str]) -> None:
    shell = next(iter(_without_debug(arguments)), os.path.basename(os.environ.get("SHELL", "")))
    print(script(shell), end="")
    line, file = {
        "bash": ('eval "$(dontstop completion bash)"', "~/.bashrc"),
        "zsh": ('eval "$(dontstop completion zsh)"', "~/.zshrc, after compinit"),
        "fish": ("dontstop completion fish | source", "~/.config/fish/config.fish"),
    }[shell]
    log(f"To use the completion now in {shell}, run: {line}. To keep it, add that line to {file}.")


def _without_debug(arguments: Sequence[str]) -> list[str]:
    """Leaves out `--debug`, which `adapt.terminal.console.attempt` reads."""
    return [argument for argument in arguments if argument != "--debug"]


PUSH_USAGE = """\
dontstop push PATH OWNER/NAME [--public]

Sends a model to the Hugging Face Hub. PATH is the folder of an exported model (runs/export/...), or any folder with a
model that Hugging Face transformers can load. If the repository does not exist, it is created: a private one, or a
public one with --public. Set HF_TOKEN to a token with write permission. If the upload is interrupted, the same command
continues it."""


def push(arguments: Sequence[str]) -> None:
    """Runs `dontstop push`, which sends the folder of a model to the Hugging Face Hub.

    Args:
        arguments: the folder, the name of the repository, and `--public` or nothing.

    Raises:
        AdaptError: the arguments are wrong, or the push failed.
    """
    arguments = _without_debug(arguments)
    if not arguments or {*arguments} & {"-h", "--help"}:
        print(PUSH_USAGE)
        return
    named = [argument for argument in arguments if argument != "--public"]
    if len(named) != 2 or any(argument.startswith("-") for argument in named):
        raise ConfigError(f"dontstop push does not take {' '.join(arguments)}", PUSH_USAGE.splitlines()[0])
    folder, repository = user_path(named[0]), named[1]
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", "give the folder of an exported model")
    sent = push_folder(folder, repository, private="--public" not in arguments)
    log(f"pushed to {sent.url}")
    finish("push", folder, {"url": sent.url, "commit": sent.commit})


def recipe_rows() -> list[list[str]]:
    """Returns the name of each recipe, the first sentence of the comment at the top of its file, and its command."""
    rows = []
    for name, file in recipes().items():
        text = file.read_text(encoding="utf-8")
        comment = []
        for line in text.splitlines():
            if not line.startswith("#") or line.startswith("#   "):
                break
            comment.append(line.removeprefix("# ").partition("    ")[0])
        if name == "demo":
            command = "dontstop demo"
        elif "\nstages:" in text:
            command = f"dontstop chain run {name}"
        else:
            command = f"dontstop {'sequence' if name == 'sequence' else 'dapt'} --config {name}"
        rows.append([name, _first_sentence(" ".join(comment)), command])
    return rows


def shipped_blocks() -> list[Block]:
    """Makes a table of the shipped recipes and a table of the shipped search spaces."""
    described = [[name, _first_sentence(_docstring(file))] for name, file in spaces().items()]
    return [
        Table(["recipe", "what it does", "command"], recipe_rows(), "Recipes", words=True),
        Table(["space", "what it searches"], described, "Search spaces, for dontstop tune --space NAME", words=True),
        TextBlock(
            "dontstop recipes NAME prints a recipe, and dontstop recipes spaces/NAME prints a search space. Write the "
            "output to a file to change it."
        ),
    ]


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _first_sentence(text: str) -> str:
    sentence, stop, _ = " ".join(text.split()).partition(". ")
    return f"{sentence}." if stop else sentence


CHAIN = ("run", "plan", "status", "logs", "report", "submit", "stop")
_BASH = """\
_dontstop() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" first="${{COMP_WORDS[1]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    elif [ "$first" = chain ] && [ "$COMP_CWORD" -eq 2 ]; then
        COMPREPLY=($(compgen -W "{chain}" -- "$word"))
    elif [ "$first" = init ] && [[ "$word" == --* ]]; then
        COMPREPLY=($(compgen -W "{init}" -- "$word"))
    elif [[ "$word" == --* ]]; then
        COMPREPLY=($(compgen -W "{options}" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _dontstop dontstop
"""
_ZSH = "autoload -Uz bashcompinit && bashcompinit\n" + _BASH
_FISH = """\
complete -c dontstop -n __fish_use_subcommand -f -a "{commands}"
complete -c dontstop -n "__fish_seen_subcommand_from chain" -f -a "{chain}"
{init_fish}
{fields}
"""


def script(shell: str) -> str:
    """Returns the completion script for a shell.

    Args:
        shell: `bash`, `zsh` or `fish`.

    Raises:
        ConfigError: completion is not available for this shell.
    """
    forms = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
    if shell not in forms:
        raise ConfigError(f"there is no completion for {shell or '(no shell)'}", "name bash, zsh or fish")
    options = option_sections().items()
    kinds = (f"{section}.{field.name}" for section, of in options for field in fields(of))
    names = ["config", "help", "debug", *flat(Config()), *kinds]
    return forms[shell].format(
        commands=" ".join([*JOBS, *COMMANDS]),
        chain=" ".join(CHAIN),
        init=" ".join(f"--{name}" for name in OPTIONS),
        init_fish="\n".join(
            f'complete -c dontstop -n "__fish_seen_subcommand_from init" -l {name}' for name in OPTIONS
        ),
        options=" ".join(f"--{name}" for name in names),
        fields="\n".join(f"complete -c dontstop -l {name} -r" for name in names),
    )


RUN: dict[str, Callable[[list[str]], None]] = {
    "chain": _module("chain_command"),
    "tune": _module("tune_command"),
    "demo": _module("demo_command"),
    "init": _module("init"),
    "doctor": _module("doctor"),
    "push": push,
    "recipes": _recipes,
    "completion": _completion,
}
"""Functions that run the commands in COMMANDS, keyed by command. Each takes the rest of the command line."""
