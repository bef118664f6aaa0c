"""The command line of what jobs/chain.py does with clusters."""

from collections.abc import Sequence
from dataclasses import dataclass

from adapt.errors import ConfigError

VERBS = ("submit", "stop", "check", "stages")
"""What is done by a cluster alone; `status` and `logs` also look at results on this machine."""
USAGE = (
    "jobs/chain.py submit|status|logs|stop|report --serve FILE [--address URL] [--NAME VALUE] [--section.field VALUE],"
    " with --job NAME --config FILE in place of FILE for a single job"
)
PORT = 8300
"""Where `report --serve` serves, beside Ray's 8265."""
_VALUES, _SWITCHES = {"address", "drive-on", "port", "retries", "stage"}, {"again", "job-per-stage", "follow", "serve"}


@dataclass(frozen=True)
class Asked:
    """What is asked of a cluster."""

    verb: str
    rest: list[str]
    """What says which chain or job: its file and the fields that are set."""
    address: str | None = None
    retries: int = 2
    switches: frozenset[str] = frozenset()
    stage: str | None = None
    """Whose log is asked for."""
    port: int = PORT
    drive_on: str | None = None
    """A resource of Ray's that some nodes have: work drives itself there, and not on the head."""


def read_asked(arguments: Sequence[str]) -> Asked:
    """Reads `submit FILE --address http://127.0.0.1:8265 --job-per-stage --data /shared/data`.

    Raises:
        ConfigError: an option has no value, or a wrong one.
    """
    verb, *words = arguments
    values: dict[str, str] = {}
    switches, rest = set(), []
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            rest.append(word)
        elif name in _SWITCHES and not equals:
            switches.add(name)
        elif name in _VALUES:
            if not equals and not words:
                raise ConfigError(f"{word} has no value", f"use: {USAGE}")
            values[name] = value if equals else words.pop(0)
        else:  # of the chain or the job; its value is not to be taken for a word of ours
            rest.append(word)
            if not equals and words and word != "--debug":
                rest.append(words.pop(0))
    stage = values.get("stage")
    if verb == "logs" and len(rest) > 1 and not rest[0].startswith("--") and not rest[1].startswith("--"):
        stage = rest.pop(1)
    retries, port = values.get("retries", "2"), values.get("port", str(PORT))
    if not retries.isdecimal():
        raise ConfigError(f"--retries takes a number, not {retries}", "write --retries 2, or 0 for none")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--port takes a number up to 65535, not {port}", f"write --port {PORT}, or leave it out")
    if not rest:
        raise ConfigError(f"{verb} names no file", f"use: {USAGE}")
    return Asked(
        verb, rest, values.get("address"), int(retries), frozenset(switches), stage, int(port), values.get("drive-on")
    )
