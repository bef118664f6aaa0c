"""What is submitted: a chain or a single job, under an identity that follows from its configuration."""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapt.chain.arguments import read_command, read_job
from adapt.chain.expand import Node, expand_chain
from adapt.chain.file import read_chain
from adapt.config import Config, flat
from adapt.job.job import Job
from adapt.parse import parse

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
