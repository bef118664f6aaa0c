"""Values on a command line that belong to no option."""

from collections.abc import Sequence

from adapt.errors import ConfigError

SWITCHES = frozenset({"debug", "help", "print_config"})
"""Options that take no value."""


def refuse_stray(arguments: Sequence[str]) -> None:
    """Refuses values that belong to no option, as the shell makes them of a pattern without quotes.

    Args:
        arguments: of a command line, without the program's name.

    Raises:
        ConfigError: there are such values; names the option before them.
    """
    option, takes_value, stray = "", False, list[str]()
    for argument in arguments:
        if argument.startswith("-") and not stray:
            name, equals, _ = argument.partition("=")
            option, takes_value = name, not equals and name[2:] not in SWITCHES
        elif argument.startswith("-"):
            break
        elif takes_value:
            takes_value = False
        else:
            stray.append(argument)
    if not stray:
        return
    named = ", ".join(stray[:3]) + (f" and {len(stray) - 3} more" if len(stray) > 3 else "")
    if stray[0].startswith(("\u2013", "\u2014")):
        fix = "write two hyphens before the name: this is the dash that word processors put in their place"
    elif not option:
        fix = "write --section.field VALUE; or for a file of fields, --config FILE"
    elif option[2:] in SWITCHES:
        fix = f"{option} takes no value"
    else:
        fix = (
            f"{option} takes one value: quote a pattern, so that the shell does not expand it"
            f" ({option} 'FOLDER/*.jsonl'), or write several values as a list: {option} '[FIRST, SECOND]'"
        )
    raise ConfigError(f"unrecognized arguments: {named}", fix)
