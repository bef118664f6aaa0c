"""Completes commands in shells."""

from adapt.cli.init import OPTIONS
from adapt.cli.main import COMMANDS
from adapt.config import Config, flat
from adapt.errors import ConfigError
from adapt.job.registry import JOBS

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
    """The completion script of a shell.

    Args:
        shell: `bash`, `zsh` or `fish`.

    Raises:
        ConfigError: it is another.
    """
    forms = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
    if shell not in forms:
        raise ConfigError(f"there is no completion for {shell or '(no shell)'}", "name bash, zsh or fish")
    names = ["config", "help", "debug", *flat(Config())]
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
