"""Runs toy stages whose dependencies form a diamond.

python -m tests.runner.toys ROOT RUNS PAUSE_S KILL_AT AT_ONCE

The program prints `ready` and waits for a line of input. It then runs the stages in the store ROOT, appends the name
of each stage that runs to the file RUNS, and prints the last record.

The program waits PAUSE_S seconds after each line that it writes to a stage's files. It kills itself at the KILL_AT-th
rename of a file, or never if KILL_AT is 0. If AT_ONCE is above 1, up to this number of stages run at the same time.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from adapt.runner import Done, Outcome, Stage, Store, ensure, ensure_all, plan_stages
from adapt.runner.files import write_atomically

PARTS, LINES = 2, 4
NAMES = ("source", "left", "right", "top")
INPUTS: dict[str, list[str]] = {"source": [], "left": ["source"], "right": ["source"], "top": ["left", "right"]}


@dataclass(frozen=True)
class ToyResult:
    """Result of a toy stage."""

    lines: int = 0
    found: list[str] = field(default_factory=list)
    loss: float | None = None


Act = Callable[[Path, Done], Outcome[ToyResult]]


def idle(folder: Path, done: Done) -> Outcome[ToyResult]:
    """Imitates a stage's work without doing anything."""
    return Outcome(ToyResult())


@dataclass(frozen=True, eq=False)
class Toy(Stage[ToyResult]):
    """A stage whose kind is a field, so that each stage of a chain has a separate folder."""

    name: str
    kind: str  # type: ignore[misc]
    act: Act
    """Function that does the stage's work."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: "Toy | None" = None
    left: "Toy | None" = None
    right: "Toy | None" = None

    def what(self) -> Mapping[str, Any]:
        return self.settings

    def needs(self) -> Mapping[str, float]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[ToyResult]:
        return self.act(folder, done)


def expected(name: str) -> dict[str, str]:
    """Returns the content of a finished stage's files, keyed by file name, without its record."""
    parts = {f"part-{part}": "".join(f"{name} {part} {line}\n" for line in range(LINES)) for part in range(PARTS)}
    return {**parts, "lines.json": json.dumps({"of inputs": _lines_of_inputs(name)})}


def _lines_of_inputs(name: str) -> int:
    return sum(PARTS * LINES + _lines_of_inputs(needed) for needed in INPUTS[name])


def work(name: str, runs: Path, pause_s: float) -> Act:
    """Returns a stage's work: it writes lines to files, and counts its inputs' lines to detect incomplete inputs."""

    def run(folder: Path, done: Done) -> Outcome[ToyResult]:
        with runs.open("a") as file:
            file.write(name + "\n")
        for part in range(PARTS):
            with (folder / f"part-{part}").open("w") as file:
                for line in range(LINES):
                    file.write(f"{name} {part} {line}\n")
                    file.flush()
                    time.sleep(pause_s)
        lines = 0
        for record in done.records.values():
            lines += sum(len(part.read_text().splitlines()) for part in record.path.glob("part-*"))
            lines += json.loads((record.path / "lines.json").read_text())["of inputs"]
        write_atomically(folder / "lines.json", json.dumps({"of inputs": lines}))
        return Outcome(ToyResult(lines))

    return run


def diamond(runs: Path, pause_s: float = 0, name: str = "toy", **what: Any) -> Toy:
    """Builds four stages in a diamond, and returns the last stage. `what` is the configuration of the first stage."""
    stages: dict[str, Toy] = {}
    for kind in NAMES:
        inputs = {needed: stages[needed] for needed in INPUTS[kind]}
        own = what if kind == "source" else {}
        stages[kind] = Toy(name, kind, work(kind, runs, pause_s), own, **inputs)
    return stages["top"]


def single(run: Act = idle, name: str = "toy", **what: Any) -> Toy:
    """Builds a stage without inputs."""
    return Toy(name, "toy", run, what)


def part(top: Toy, name: str) -> Toy:
    """Returns the input with this name of a toy stage."""
    stage = top.inputs[name]
    assert isinstance(stage, Toy)
    return stage


def ran(runs: Path) -> list[str]:
    """Returns the names of the stages that have run since the last call."""
    names = runs.read_text().split() if runs.exists() else []
    runs.unlink(missing_ok=True)
    return names


def content(folder: Path) -> dict[str, str]:
    """Returns the content of a finished stage's files, keyed by path, without its record."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "stage.json")
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def states(stage: Stage[Any], store: Store) -> dict[str, Any]:
    """Returns, for each stage of a plan, "done" or the differences from the most similar finished stage."""
    return {line.stage.kind: "done" if line.record else line.changed for line in plan_stages(stage, store)}


def _kill_at(rename: int) -> None:
    real, calls = os.replace, count(1)

    def replace_or_die(*paths: Any) -> None:
        if next(calls) == rename:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*paths)

    os.replace = replace_or_die  # type: ignore[assignment]


if __name__ == "__main__":
    root, runs, pause_s, kill_at, at_once = sys.argv[1:]
    if int(kill_at):
        _kill_at(int(kill_at))
    print("ready", flush=True)
    sys.stdin.readline()
    top, store = diamond(Path(runs), float(pause_s)), Store(Path(root))
    record = ensure(top, store).record if at_once == "1" else ensure_all([top], store, None, int(at_once))[0]
    print(json.dumps(asdict(record), default=str), flush=True)
