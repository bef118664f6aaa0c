"""Runs the code blocks of one page in a separate folder, as a reader would."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapt.job import JOBS
from tests.docs.blocks import ROOT, CodeBlock
from tests.docs.world import DEMO, STAND_IN
from tests.drive import run_forked
from tests.forks.process import become_job
from tests.forks.server import Forked

HERE = Path(__file__).resolve().parent
COMMAND, SHIM, PYTHON_BLOCKS = (str(HERE / name) for name in ("command.py", "shim.py", "python_blocks.py"))
OF_CLUSTERS = {"--address": 1, "--retries": 1, "--port": 1, "--drive-on": 1, "--stage": 1}
OF_CLUSTERS |= {"--job-per-stage": 0, "--again": 0, "--serve": 0, "--follow": 0}
"""Options that decide where `dontstop chain` runs, each with its number of values. `planned` removes them."""
MADE_BEFORE = re.compile(r"[\w./-]+-(?:KEY|[0-9a-f]{16})\b[\w./-]*")
"""Pattern of paths in the folders of stages, such as `runs/export/papers-KEY`. The pages cannot know the keys."""


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a block that has run."""

    code: int
    out: str
    err: str


def planned(arguments: Sequence[str]) -> list[str]:
    """Turns a command into one that prints the work to do and runs nothing. Commands without such a form are unchanged.

    Args:
        arguments: command-line arguments of `dontstop`.
    """
    first, *rest = [*arguments] or ["help"]
    if {"-h", "--help", "--print_config"} & {*rest}:
        return [*arguments]
    if first == "vocabulary" and rest and not rest[0].startswith("-"):
        rest = [f"--vocabulary.action={rest[0]}", *rest[1:]]
    if first in JOBS:
        return ["chain", "plan", "--job", first, *rest]
    if first == "demo":
        return ["chain", "plan", "--config", str(ROOT / "jobs" / "recipes" / "demo.yaml"), *rest]
    if first == "tune":
        return ["tune", "plan", *(rest[1:] if rest[:1] in (["plan"], ["status"]) else rest)]
    if first == "chain":
        kept, words = [], rest[1:]
        while words:
            word = words.pop(0)
            if word.partition("=")[0] in OF_CLUSTERS:
                del words[: 0 if "=" in word else OF_CLUSTERS[word]]
            else:
                kept.append(word)
        if rest[0] == "logs" and len(kept) > 1 and not kept[0].startswith("-") and not kept[1].startswith("-"):
            del kept[1]  # `chain plan` does not accept the name of a stage
        return ["chain", "plan", *kept]
    return [*arguments]


@dataclass
class PageRun:
    """The folder of a page, in which the blocks of the page run one after another."""

    folder: Path
    models: Path
    shell: dict[str, str] = field(default_factory=dict)
    """Environment variables of shell blocks, in addition to `environment`."""
    stack: ExitStack = field(default_factory=ExitStack)
    python: tuple[Any, Any] | None = None
    """Pipes to and from the process that runs the Python blocks, or None if the process has not been started."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of all processes. The cache folder contains the demo model."""
        return {"XDG_CACHE_HOME": str(self.models)}

    def run(self, block: CodeBlock, place: str) -> Ended:
        """Writes, checks or runs a block, depending on its title, language and mark.

        Args:
            block: the block of the page.
            place: page and line of the block, for messages.
        """
        text = MADE_BEFORE.sub(self._made, block.text)
        if block.title:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if block.mark == "none":
            return Ended(0, "", "")
        if block.language == "yaml":
            return self._check(text, block.title)
        if block.title or block.language not in ("sh", "python"):
            return Ended(0, "", "")
        plan = block.mark == "plan"
        return self._sh(text, plan) if block.language == "sh" else self._python(text, plan, place)

    def _made(self, match: re.Match[str]) -> str:
        """Returns the folder that an earlier command of the page has created, or else the folder of a tiny model."""
        pattern = re.sub(r"-(KEY|[0-9a-f]{16})\b", "-*", match[0])
        found = sorted(self.folder.glob(pattern)) if not pattern.startswith("/") else []
        return str(found[-1].relative_to(self.folder)) if found else str(self.models / STAND_IN)

    def _check(self, text: str, title: str) -> Ended:
        file = self.folder / (title or "fragment.yaml")
        file.write_text(text)
        environment = {**self.environment, "PYTHONPATH": f"{self.folder}:{ROOT}"}
        done = run_forked([COMMAND, "check", str(file)], self.folder, **environment)
        if not title:
            file.unlink()
        return Ended(done.returncode, done.stdout, done.stderr)

    def _sh(self, text: str, plan: bool) -> Ended:
        variables = {**os.environ, **self.environment, **self.shell, "DOCS_PLAN": "1" if plan else ""}
        variables.pop("RAY_ADDRESS", None)
        done = subprocess.run(["bash", "-ec", text], cwd=self.folder, env=variables, text=True, capture_output=True)
        return Ended(done.returncode, done.stdout, done.stderr)

    def _python(self, text: str, plan: bool, place: str) -> Ended:
        if not self.python:
            self.python = self.stack.enter_context(self._python_process())
        questions, answers = self.python
        print(json.dumps({"text": text, "plan": plan, "place": place}), file=questions, flush=True)
        line = answers.readline()
        return Ended(**json.loads(line)) if line else Ended(1, "", "the Python process ended")

    @contextmanager
    def _python_process(self) -> Iterator[tuple[Any, Any]]:
        pipes = [self.folder.with_name(f"{self.folder.name}-{name}") for name in ("questions", "answers")]
        files = [str(self.folder.with_name(f"{self.folder.name}-{name}")) for name in ("out", "err")]
        for pipe in pipes:
            os.mkfifo(pipe)
        variables = {**os.environ, **self.environment, "PYTHONPATH": f"{self.folder}:{ROOT}"}
        arguments = [str(pipe) for pipe in pipes]
        process = Forked(become_job, PYTHON_BLOCKS, arguments, str(self.folder), variables, files)
        try:
            with pipes[0].open("w") as questions, pipes[1].open() as answers:
                yield questions, answers
            process.wait(60)
        finally:
            process.kill()


@contextmanager
def page_run(folder: Path, data: Path, models: Path) -> Iterator[PageRun]:
    """Makes a folder with the files that pages read, and a shell whose `dontstop` command runs in a forked process.

    Args:
        folder: path of the page's folder, which does not exist yet.
        data: folder with the files that pages read.
        models: folder with tiny models, named like published models.
    """
    shutil.copytree(data, folder)
    for owner in models.iterdir():
        if owner.name != Path(DEMO).parts[0]:
            (folder / owner.name).symlink_to(owner)
    programs = folder.with_name(f"{folder.name}-bin")
    programs.mkdir()
    for name in ("dontstop", "python"):
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec "$DOCS_PYTHON" -IS "{SHIM}" {name} "$@"\n')
        file.chmod(0o755)
    socket_name = f"docs-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(f"\0{socket_name}")
        listener.listen()
        threading.Thread(target=_answer, args=(listener,), daemon=True).start()
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        shell = {"PATH": path, "DOCS_SERVER": socket_name, "DOCS_PYTHON": sys.executable}
        yield PageRun(folder, models, shell, stack)


def _answer(listener: socket.socket) -> None:
    """Runs the commands that the shell requests. Each command runs in a thread, so that pipelines work."""
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:  # the page's run has ended and closed the socket
            return
        threading.Thread(target=_carry_out, args=(asked,), daemon=True).start()


def _carry_out(asked: socket.socket) -> None:
    with asked:
        question = json.loads(asked.makefile("rb").read())
        arguments, environment = question["arguments"], question["environment"]
        is_job = question["name"] == "python" and re.fullmatch(r"(.*/)?jobs/(\w+)\.py", arguments[0])
        if is_job:
            question["name"], arguments = "dontstop", [Path(arguments[0]).stem, *arguments[1:]]
        if question["name"] == "dontstop":
            command = ["dontstop", *(planned(arguments) if environment.get("DOCS_PLAN") else arguments)]
        else:
            command = ["script", str(Path(question["folder"], arguments[0])), *arguments[1:]]
        paths = [question["folder"], str(ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        done = run_forked([COMMAND, *command], Path(question["folder"]), **environment)
        answer = {"code": done.returncode, "out": done.stdout, "err": done.stderr}
        asked.sendall(json.dumps(answer).encode())


def failure(place: str, block: CodeBlock, ended: Ended) -> str:
    """Returns the message of a test about a failed block."""
    return f"{place}: exit code {ended.code}\n{block.text}\n--- stdout\n{ended.out}\n--- stderr\n{ended.err}"


def run_page(page: Path, blocks: Sequence[CodeBlock], run: PageRun) -> None:
    """Runs all blocks of a page. The test fails at the first block that fails."""
    for block in blocks:
        place = f"{page.name}, line {block.line}"
        if block.problem:
            pytest.fail(f"{place}: {block.problem}")
        ended = run.run(block, place)
        if ended.code:
            pytest.fail(failure(place, block, ended))
