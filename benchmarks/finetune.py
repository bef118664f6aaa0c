"""Measures fine-tuning speed relative to transformers' Trainer, and how much faster five seeds run in parallel.

`ratio` (6 layers of 384) and `ratio_tiny` (2 layers of 128): train examples per second of our loop, divided by those of
the Trainer (AutoModelForSequenceClassification, dynamic padding, bf16 where it is faster, fused AdamW) with the same
task, model, batch of 16 and maximum length. Each measurement runs in a new process, and both sides alternate.
`side_by_side`: time of five seeds one after another on all cores, divided by their time as parallel Ray tasks with one
core each.
"""

import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks import classify, tuned
from benchmarks.common import Options, Result, apart, main, workplace
from benchmarks.rounds import ROUNDS, Ratio, Watch, alternate

TARGETS = {"ratio": (">=", 3.0), "ratio_tiny": (">=", 3.0), "side_by_side": (">=", 1.2)}
MODELS = {"minilm": "minilm-l6-general", "tiny": "bert-tiny-general"}
FIGURES = {"minilm": "ratio", "tiny": "ratio_tiny"}
STEPS = {"minilm": 12, "tiny": 60}
SEEDS = 5


def measure(options: Options) -> Result:
    """Measures the speed ratios and the time of parallel seeds."""
    result = Result({})
    for name in MODELS:
        case = classify.Case(name, options.data, options.models and options.models / MODELS[name])
        _compare(case, 3 if options.quick else 7, result)
    with workplace() as folder:
        tiny = classify.Case("tiny", options.data, options.models and options.models / MODELS["tiny"])
        _seeds(tiny, 320 if options.quick else 640, folder, result)
    return result


def _compare(case: classify.Case, rounds: int, result: Result) -> None:
    found = alternate(
        {
            "Trainer": lambda: apart(classify.peer, case, STEPS[case.size]),
            "ours": lambda: apart(tuned.ours, case, STEPS[case.size]),
        },
        rounds,
    )
    result.compare(FIGURES[case.size], found.ratio("ours", "Trainer", _rate))
    for who, runs in found.found.items():
        seconds = statistics.median(run["cpu_s_per_example"] for run in runs)
        shown = f"{found.middle(who, _rate):,.1f} examples/s, {seconds * 1000:.2f} ms of CPU an example"
        result.details.append((f"{case.size}: {who}", shown))


def _rate(run: dict[str, Any]) -> float:
    return float(run["examples_per_s"])


def _seeds(case: classify.Case, examples: int, folder: Path, result: Result) -> None:
    cores = len(os.sched_getaffinity(0))
    watch = Watch()
    times = apart(tuned.seeds, case, folder, SEEDS, cores, examples, ROUNDS)
    result.compare("side_by_side", Ratio.of(zip(times["in_turn"], times["together"], strict=True), watch.stop()))
    for way, what in (("in_turn", f"one after another, {cores} cores"), ("together", "side by side, 1 core each")):
        result.details.append((f"{SEEDS} seeds, {what}", f"{statistics.median(times[way]):.1f} s"))


if __name__ == "__main__":
    main("finetune", TARGETS, measure)
