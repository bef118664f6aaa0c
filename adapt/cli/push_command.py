"""Runs `dontstop push PATH OWNER/NAME [--public]`, which sends a model to the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path

from adapt.handover.push import push_folder
from adapt.support.errors import ConfigError
from adapt.terminal.console import finish, log

USAGE = """\
dontstop push PATH OWNER/NAME [--public]

Sends a model to the Hugging Face Hub. PATH is the folder of an exported model (runs/export/...), or any folder in the
format of transformers. A missing repository is created, private unless --public is given. Set HF_TOKEN to a token that
may write. If the upload breaks off, the same command continues it."""


def main(arguments: Sequence[str]) -> None:
    """Pushes a folder.

    Args:
        arguments: the folder, the name of the repository, and `--public` or nothing.

    Raises:
        AdaptError: the arguments are wrong, or the push failed.
    """
    if not arguments or {*arguments} & {"-h", "--help"}:
        print(USAGE)
        return
    named = [argument for argument in arguments if argument != "--public"]
    if len(named) != 2 or any(argument.startswith("-") for argument in named):
        raise ConfigError(f"dontstop push does not take {' '.join(arguments)}", USAGE.splitlines()[0])
    folder, repository = Path(named[0]).expanduser(), named[1]
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}", "give the folder of an exported model")
    sent = push_folder(folder, repository, private="--public" not in arguments)
    log(f"pushed to {sent.url}")
    finish("push", folder, {"url": sent.url, "commit": sent.commit})
