"""Parses cluster commands, and derives the id of a submitted chain or job from its configuration."""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapt.chain import chain_file, chain_nodes, chain_stages, sequential_study
from adapt.config import Config, flat
from adapt.job.job_run import Job
from adapt.parse import parse
from adapt.statistics.seeds import MARGIN, Margin, SeedRounds
from adapt.support.errors import ConfigError

VERBS = ("submit", "stop", "check", "stages")
"""Verbs of `dontstop chain` that exist only for clusters. The verbs `status` and `logs` also show results on this
machine."""
USAGE = (
    "dontstop chain submit|status|logs|stop|report --serve FILE [--address URL] [--NAME VALUE] [--section.field VALUE],"
    " with --job NAME --config FILE instead of FILE for a single job"
)
PORT = 8300
"""Default port of `report --serve`. Ray's dashboard has port 8265."""
_VALUES, _SWITCHES = {"address", "drive-on", "port", "retries", "stage"}, {"again", "job-per-stage", "follow", "serve"}


@dataclass(frozen=True)
class ClusterCommand:
    """A parsed command line of a cluster command."""

    verb: str
    rest: list[str]
    """Arguments that name the chain or job: its file, and the fields to set."""
    address: str | None = None
    """Address of the cluster's dashboard. None for the address in the environment."""
    retries: int = 2
    """Number of retries after a lost node or a killed process."""
    switches: frozenset[str] = frozenset()
    """Names of the options on the command line that take no value."""
    stage: str | None = None
    """Stage whose log is shown."""
    port: int = PORT
    """Port of `report --serve`."""
    drive_on: str | None = None
    """Ray resource of the nodes that run the job's entry point. None for the head node."""


def read_cluster_command(arguments: Sequence[str]) -> ClusterCommand:
    """Parses a command such as `submit FILE --address http://127.0.0.1:8265 --job-per-stage --data /shared/data`."""
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
        else:  # an option of the chain or job, whose value may look like one of our options
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
    return ClusterCommand(
        verb, rest, values.get("address"), int(retries), frozenset(switches), stage, int(port), values.get("drive-on")
    )


NAME, DIGEST, PART = "dontstop_name", "dontstop_digest", "dontstop_part"
"""Keys of a cluster job's metadata: name of the chain or job, digest of its configuration, and label of the stage."""
_DIGITS = 12


@dataclass(frozen=True)
class Order:
    """A chain or a job to run on a cluster."""

    name: str
    """Name of the chain, or the name in the job's configuration."""
    digest: str
    """SHA-256 of all configurations. Submission ids contain its first digits."""
    program: str
    """Name of the program in the folder `jobs`: `chain`, or the name of the job."""
    arguments: list[str]
    """Arguments of the program, without its verb."""
    configs: list[Config]
    nodes: Mapping[str, chain_nodes.Node] = field(default_factory=dict)
    """Nodes of a chain, keyed by label. Each node comes after the nodes that it starts from."""
    job: Job | None = None
    """The job. None for a chain."""
    verb: str = "run"
    """Verb that runs a chain: `run` as one job, or `stages` with each stage as a separate job."""
    further: tuple[str, ...] = ()
    """Additional arguments of `verb`."""
    baseline: str = ""
    """Member of the chain's set `recipe` with which the report compares the other members."""
    margin: Margin = MARGIN
    """Largest differences that the chain's report treats as too small to matter."""
    rounds: SeedRounds | None = None
    """Rounds of seeds after which a sequential study analyzes its results. None for other chains and jobs."""

    @property
    def entrypoint(self) -> str:
        """Command that runs the chain or job."""
        if self.job is None:
            return self.command(self.verb, *self.further)
        return shlex.join(["python", f"jobs/{self.program}.py", *self.arguments])

    def command(self, verb: str, *further: str) -> str:
        """Returns a command of jobs/chain.py for this chain or job."""
        job = ["--job", self.program] if self.job else []
        return shlex.join(["python", "jobs/chain.py", verb, *job, *self.arguments, *further])

    def narrowed(self, arguments: Sequence[str]) -> str:
        """Returns the command that runs only the stages of a chain that the given arguments select."""
        return shlex.join(["python", "jobs/chain.py", "run", *arguments])

    def submission(self, attempt: int, part: str = "") -> str:
        """Returns the submission id of a job, which depends only on name, configurations, attempt and stage.

        Args:
            attempt: number of the attempt, from 1.
            part: label of the stage, if each stage is a separate job.
        """
        words = [re.sub(r"[^\w.-]+", "-", word).strip("-") for word in (self.name, part) if word]
        # distinguishes labels that differ only in special characters, which `words` replaces by a hyphen
        own = hashlib.sha256(part.encode()).hexdigest()[:6] if part else ""
        return "-".join(["dontstop", *words, *([own] if own else []), self.digest[:_DIGITS], str(attempt)])

    def metadata(self, part: str = "") -> dict[str, str]:
        """Returns the metadata by which the cluster jobs of this order are found."""
        return {NAME: self.name, DIGEST: self.digest, PART: part}


def order_of(arguments: Sequence[str]) -> Order:
    """Parses arguments such as `FILE --only task=acl_arc --resources.workers 2`, or `--job dapt --config FILE …`."""
    if arguments and arguments[0].startswith("--"):
        job, rest = chain_file.read_job(arguments)
        config = parse(rest, f"jobs/{job.name}.py", job.kind)
        return Order(config.name, _digest([(job.name, config)]), job.name, rest, [config], job=job)
    command = chain_file.read_command(["run", *arguments])
    source = chain_file.read_chain(command.file, command.let, command.common)
    nodes = {node.label: node for node in sequential_study.study_nodes(source, command.only)}
    configs = [node.config for node in nodes.values()]
    taken = {label: f"{label} from {node.start}, {node.selected}, {node.tuned}" for label, node in nodes.items()}
    digest = _digest([(taken[label], node.config) for label, node in nodes.items()])
    return Order(
        *(source.name, digest, "chain", list(arguments), configs, nodes),
        baseline=source.baseline,
        margin=source.margin,
        rounds=source.rounds,
    )


def _digest(named: Sequence[tuple[str, Config]]) -> str:
    content: list[Any] = [[name, sorted(flat(config).items(), key=lambda pair: pair[0])] for name, config in named]
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()


def chain_of(order: Order) -> chain_stages.Chain:
    """Builds the stages of a submitted chain or job."""
    if order.job:
        return chain_stages.build_one(order.job, order.configs[0])
    return sequential_study.built_chain(list(order.nodes.values()), order.baseline, order.margin, order.rounds)
