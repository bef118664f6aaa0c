"""Measures the time that the chain runner adds to each stage, and the time to plan a study of 10,000 stages.

`stage_overhead_ms` is the time per stage of a chain of 20 stages that each write one line, in one process. The runner
spends this time on keys, locks, records and files. `plan_10k_s` is the time that `dontstop chain plan` takes for 2,000
fine-tuning settings with five seeds each.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.runner import Done, Outcome, Stage, Store, ensure
from benchmarks.common import ROOT, Options, Result, main, workplace

TARGETS = {"stage_overhead_ms": ("<=", 50.0), "plan_10k_s": ("<=", 10.0)}
STAGES, SEEDS = 20, 5


@dataclass(frozen=True)
class Nothing:
    """Result of a trivial stage, which is the stage's number."""

    number: int


@dataclass(frozen=True, eq=False)
class Trivial(Stage[Nothing]):
    """A stage that writes one line and depends on the previous stage."""

    kind = "trivial"

    name: str
    number: int
    before: "Trivial | None"

    def what(self) -> Mapping[str, Any]:
        """Returns the stage's number, which distinguishes this stage from others."""
        return {"number": self.number}

    def run(self, folder: Path, done: Done) -> Outcome[Nothing]:
        """Writes one line to a file in the stage's folder."""
        (folder / "line.txt").write_text(f"{self.number}\n")
        return Outcome(Nothing(self.number))


def measure(options: Options) -> Result:
    """Runs trivial chains and plans a large study."""
    with workplace() as folder:
        rounds = [_ran(Store(folder / str(number))) for number in range(2 if options.quick else 7)]
        tasks, recipes = (10, 20) if options.quick else (40, 50)
        seconds = _planned(folder, tasks, recipes)
        stages = tasks * recipes * SEEDS
        details = [("stages planned", f"{stages:,} in {seconds:.2f} s")]
        overhead = statistics.median(rounds) / STAGES * 1000
        return Result({"stage_overhead_ms": overhead, "plan_10k_s": seconds * 10_000 / stages}, details)


def _ran(store: Store) -> float:
    """Runs a chain of trivial stages and returns the time in seconds."""
    last = None
    for number in range(STAGES):
        last = Trivial(f"stage-{number}", number, last)
    assert last
    began = time.perf_counter()
    ensure(last, store)
    return time.perf_counter() - began


def _planned(folder: Path, tasks: int, recipes: int) -> float:
    """Plans fine-tuning runs of many tasks with many learning rates, and returns the time in seconds."""
    from adapt.model.demo_checkpoint import demo_checkpoint

    model = demo_checkpoint("demo:bert-tiny")
    names = [f"task{number}" for number in range(tasks)]
    splits = {split: f"{folder}/{{task}}-{split}.jsonl" for split in ("train", "dev", "test")}
    for name in names:
        for split, place in splits.items():
            lines = [json.dumps({"text": f"{name} {split} {n}", "label": "ab"[n % 2]}) + "\n" for n in range(8)]
            Path(place.format(task=name)).write_text("".join(lines))
    content = {
        "name": "large",
        "common": {"model.path": str(model), "storage.root": str(folder / "runs")},
        "sets": {
            "task": names,
            "recipe": {f"rate{number}": {"rate": (number + 1) * 1e-6} for number in range(recipes)},
        },
        "baseline": "rate0",
        "stages": {
            "tuned": {
                "job": "finetune",
                "for": ["recipe", "task"],
                "task": {"name": "{task}", **splits},
                "finetune.learning_rate": "{recipe.rate}",
                "finetune.seeds": list(range(SEEDS)),
            }
        },
    }
    file = folder / "large.yaml"
    file.write_text(json.dumps(content))  # JSON is valid YAML.
    command = [sys.executable, str(ROOT / "jobs" / "chain.py"), "plan", str(file)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"planning failed: {done.stderr[-500:]}")
    return seconds


if __name__ == "__main__":
    main("chain", TARGETS, measure)
