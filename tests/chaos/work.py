"""Defines the chain of six stages and runs it: on this machine, from a node of a cluster, or submitted to a cluster."""

import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from cluster.here.nodes import Nodes
from cluster.here.submission import Submission
from tests.chaos.storage import Root
from tests.forks.nodes import become_member
from tests.forks.process import become_job
from tests.forks.server import Forked
from tests.samples import save_tiny_bert, sentences

ROOT = Path(__file__).parents[2]
STEPS, EVERY = 60, 5
"""Number of training steps, and number of steps between two checkpoints."""
STAGES = 6
"""Number of stages of the chain: manifest, prepare, evaluate, train, evaluate, export."""
STALL_S = 8.0
PATIENCE_S = 300.0
"""Maximum time that a command may take [s]. It takes about 15 s on two idle cores."""
_CLONE_NEWNET = 0x40000000  # value from <linux/sched.h>


@dataclass(frozen=True)
class Chain:
    """Files of the chain."""

    file: Path
    """Chain file with six stages."""
    used: Path
    """The same chain with a seventh stage, which reads the exported model."""
    options: list[str]
    """Command-line options with which a single job runs the same six stages as the chain."""

    @classmethod
    def made(cls, folder: Path) -> "Chain":
        """Writes the corpus, the model and both chain files to a folder."""
        model, corpus = save_tiny_bert(folder / "tiny-bert"), folder / "corpus.jsonl"
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(1500)))
        fields = {
            "job": "dapt",
            "corpus": {"paths": str(corpus), "heldout_fraction": 0.02},
            "training": {
                "max_steps": STEPS,
                "global_batch_size": 16,
                "micro_batch": 4,
                "precision": "fp32",
                "log_interval_steps": 1,
                "checkpoint_interval_steps": EVERY,
            },
            "evaluation": {"bootstrap_samples": 50, "examples": 0},
        }
        common = {"model.path": str(model), "training.sequence_length": 64, "evaluation.sequence_length": 64}
        common |= {"resources": {"workers": 2, "zero_stage": 2, "stall_s": STALL_S, "max_stalls": 10}}
        merged = {"job": "merge", "from": "model", "merge.models": [str(model)]}
        chain: dict[str, Any] = {"name": "faults", "baseline": "model", "common": common, "stages": {"model": fields}}
        files = folder / "chain.yaml", folder / "used.yaml"
        files[0].write_text(json.dumps(chain))  # a JSON file is also a YAML file
        files[1].write_text(json.dumps({**chain, "stages": {"model": fields, "used": merged}}))
        sections = {"name": "model", **common, **fields}
        del sections["job"]
        return cls(*files, [f"--{name}={value}" for name, value in _flat(sections)])


def _flat(sections: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in sections.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


class Run(Protocol):
    """A command that runs the chain and has been started."""

    def poll(self) -> int | None:
        """Returns the exit code, or None while the command runs."""

    def said(self) -> str:
        """Returns the command's messages so far."""

    def below(self) -> list[psutil.Process]:
        """Returns the command's process and its descendants on this machine."""

    def kill(self) -> None:
        """Ends the command by SIGKILL."""


@dataclass
class Process:
    """A command that runs in a forked process on this machine. Its messages go to a file."""

    process: Forked
    messages: Path

    def poll(self) -> int | None:
        return self.process.poll()

    def said(self) -> str:
        return self.messages.read_text(errors="replace")

    def below(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Submitted:
    """The command `dontstop chain submit`, which is not forked."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._submission = Submission(arguments, environment, "submit")

    def poll(self) -> int | None:
        return self._submission._process.poll()

    def said(self) -> str:
        return "\n".join(self._submission.said)

    def below(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            keeper = psutil.Process(self._submission._process.pid)
            return [keeper, *keeper.children(recursive=True)]
        return []

    def kill(self) -> None:
        self._submission.stop()


@dataclass
class Place:
    """Storage root, temporary folder and environment of a chain's commands, and the folder of their messages."""

    folder: Path
    root: Root
    temporary: Path
    """Folder for temporary files of the commands (TMPDIR). Its path is short, because Ray's sockets are below it."""
    environment: dict[str, str] = field(default_factory=dict)
    """Additional environment variables."""
    commands: int = 0
    """Number of commands that were started."""

    def arguments(self, chain: Path) -> list[str]:
        return [str(chain), f"--storage.root={self.root.url}"]

    def files(self) -> tuple[Path, Path]:
        """Returns new files for the results and for the messages of a command."""
        self.commands += 1
        files = self.folder / f"out-{self.commands}", self.folder / f"err-{self.commands}"
        for file in files:
            file.touch()
        return files

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {**kept, "TMPDIR": str(self.temporary), "HF_HUB_OFFLINE": "1", **self.environment}

    def start(self, chain: Path, become: Callable[..., None] = become_job) -> Run:
        """Runs the chain on this machine in a forked process."""
        out, messages = self.files()
        given = [f"{ROOT}/jobs/chain.py", ["run", *self.arguments(chain)], str(ROOT), self.variables()]
        return Process(Forked(become, *given, [str(out), str(messages)]), messages)

    def start_apart(self, chain: Path) -> Run:
        """Runs the chain in a separate network namespace, whose loopback can be cut."""
        return self.start(chain, become_job_apart)

    def start_on(self, cluster: Nodes, chain: Path, address: str | None = None) -> Run:
        """Runs the chain in a forked process that is connected to a cluster.

        Args:
            cluster: cluster that does the work.
            chain: chain file.
            address: address of the node through which the process is connected. None for the head.
        """
        from adapt.ray.runtime import NODE_ADDRESS

        out, messages = self.files()
        own = {"TMPDIR": str(self.temporary), **({NODE_ADDRESS: address} if address else {})}
        given = [*("run", *self.arguments(chain)), f"--resources.address={cluster.address}"]
        environment = {**cluster.environment, "HF_HUB_OFFLINE": "1", **own}
        files = [str(out), str(messages)]
        return Process(Forked(become_member, f"{ROOT}/jobs/chain.py", given, environment, files), messages)

    def submit_to(self, cluster: Nodes, chain: Chain) -> Run:
        """Submits a job with the same stages instead of the chain, because the chain file is outside the project."""
        self.commands += 1
        where = ["--address", cluster.dashboard, "--resources.gpus_per_worker=0"]
        given = ["--job", "dapt", *chain.options, f"--storage.root={self.root.url}", *where]
        return Submitted(given, cluster.environment)


def become_job_apart(
    script: str, arguments: list[str], folder: str, environment: dict[str, str], files: list[str]
) -> None:
    """Turns this process into a job in its own network namespace.

    Raises:
        OSError: this user may not make a namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    set_loopback(os.getpid(), "up")
    become_job(script, arguments, folder, environment, files)


def set_loopback(process: int, state: str) -> None:
    """Switches the loopback interface of a process's network namespace `up` or `down`."""
    command = ["nsenter", f"--net=/proc/{process}/ns/net", "ip", "link", "set", "lo", state]
    subprocess.run(command, check=True)


def wait_for(holds: Callable[[], bool], run: Run, patience_s: float = PATIENCE_S) -> bool:
    """Waits until a condition holds, the command ends or the time limit passes. Returns whether the condition held."""
    end = time.monotonic() + patience_s
    while not holds():
        if run.poll() is not None or time.monotonic() > end:
            return holds()
        time.sleep(0.05)
    return True
