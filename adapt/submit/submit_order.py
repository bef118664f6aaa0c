"""The command line for a cluster, and the work that it names, under an identity that follows from its configuration."""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapt.chain.chain_file import read_chain, read_command, read_job
from adapt.chain.chain_nodes import Node, expand_chain
from adapt.config import Config, flat
from adapt.job.job_run import Job
from adapt.parse import parse
from adapt.support.errors import ConfigError

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


NAME, DIGEST, PART = "dontstop_name", "dontstop_digest", "dontstop_part"
"""What a job's metadata say: the name of the chain, the digest of its configuration, the stage that it is."""
_DIGITS = 12


@dataclass(frozen=True)
class Order:
    """Work for a cluster."""

    name: str
    """Names the chain, or the job by its configuration."""
    digest: str
    """SHA-256 of all configurations; their first digits are part of the names of jobs."""
    program: str
    """`chain`, or the name of the job."""
    arguments: list[str]
    """For the program, without its verb."""
    configs: list[Config]
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The jobs of a chain by their labels, those that others start from first."""
    job: Job | None = None
    """None for a chain."""
    verb: str = "run"
    """What does a chain: `run`, or `stages`, each as a job of its own."""
    further: tuple[str, ...] = ()
    """Arguments for that verb alone."""
    baseline: str = ""
    """The member of a chain's set `recipe` that its report compares the others to."""

    @property
    def entrypoint(self) -> str:
        """The command that does the work."""
        if self.job is None:
            return self.command(self.verb, *self.further)
        return shlex.join(["python", f"jobs/{self.program}.py", *self.arguments])

    def command(self, verb: str, *further: str) -> str:
        """A command of jobs/chain.py about this work.

        Args:
            verb: such as `status`.
            further: arguments after those that name the work.
        """
        job = ["--job", self.program] if self.job else []
        return shlex.join(["python", "jobs/chain.py", verb, *job, *self.arguments, *further])

    def narrowed(self, arguments: Sequence[str]) -> str:
        """The command for a part of a chain."""
        return shlex.join(["python", "jobs/chain.py", "run", *arguments])

    def submission(self, attempt: int, part: str = "") -> str:
        """The name of a job in Ray: the same for the same work.

        Args:
            attempt: 1 for the first.
            part: the label of a stage that is a job of its own.
        """
        words = [re.sub(r"[^\w.-]+", "-", word).strip("-") for word in (self.name, part) if word]
        own = hashlib.sha256(part.encode()).hexdigest()[:6] if part else ""  # labels may differ by their signs alone
        return "-".join(["dontstop", *words, *([own] if own else []), self.digest[:_DIGITS], str(attempt)])

    def metadata(self, part: str = "") -> dict[str, str]:
        """What Ray keeps beside the job, for those who look for it."""
        return {NAME: self.name, DIGEST: self.digest, PART: part}


def order_of(arguments: Sequence[str]) -> Order:
    """Reads `FILE --only task=acl_arc --resources.workers 2`, or `--job dapt --config FILE …`.

    Raises:
        ConfigError: a file or an argument cannot be read.
    """
    if arguments and arguments[0].startswith("--"):
        job, rest = read_job(arguments)
        config = parse(rest, f"jobs/{job.name}.py", job.kind)
        return Order(config.name, _digest([(job.name, config)]), job.name, rest, [config], job=job)
    command = read_command(["run", *arguments])
    source = read_chain(command.file, command.let, command.common)
    nodes = {node.label: node for node in expand_chain(source, command.only)}
    configs = [node.config for node in nodes.values()]
    taken = {label: f"{label} from {node.start}, {node.selected}, {node.tuned}" for label, node in nodes.items()}
    digest = _digest([(taken[label], node.config) for label, node in nodes.items()])
    return Order(source.name, digest, "chain", list(arguments), configs, nodes, baseline=source.baseline)


def _digest(named: Sequence[tuple[str, Config]]) -> str:
    content: list[Any] = [[name, sorted(flat(config).items(), key=lambda pair: pair[0])] for name, config in named]
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()
