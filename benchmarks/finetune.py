"""Fine-tuning speed against transformers' Trainer, and five seeds side by side against one after another.

`ratio` (6 layers of 384), `ratio_tiny` (2 of 128): train examples a second of our loop over those of the Trainer
(AutoModelForSequenceClassification, dynamic padding, bf16 where that is quicker, fused AdamW), same task, model, batch
of 16 and cut. Every measurement is a process of its own, and both alternate. `side_by_side`: time of five seeds, each
with all cores, one after another, over their time as Ray tasks with one core each.
"""

import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks import classify, tuned
from benchmarks.common import Options, Result, apart, main, workplace

TARGETS = {"ratio": (">=", 3.0), "ratio_tiny": (">=", 3.0), "side_by_side": (">=", 1.2)}
MODELS = {"minilm": "minilm-l6-general", "tiny": "bert-tiny-general"}
FIGURES = {"minilm": "ratio", "tiny": "ratio_tiny"}
STEPS = {"minilm": 12, "tiny": 60}
SEEDS = 5


def measure(options: Options) -> Result:
    """All figures."""
    result = Result({})
    for name in MODELS:
        case = classify.Case(name, options.data, options.models and options.models / MODELS[name])
        _compare(case, 1 if options.quick else 7, result)
    with workplace() as folder:
        tiny = classify.Case("tiny", options.data, options.models and options.models / MODELS["tiny"])
        _seeds(tiny, 320 if options.quick else 640, folder, result)
    return result


def _compare(case: classify.Case, rounds: int, result: Result) -> None:
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "Trainer": []}
    for _ in range(rounds):
        found["Trainer"].append(apart(classify.peer, case, STEPS[case.size]))
        found["ours"].append(apart(tuned.ours, case, STEPS[case.size]))
    rates = {who: statistics.median(run["examples_per_s"] for run in runs) for who, runs in found.items()}
    result.figures[FIGURES[case.size]] = rates["ours"] / rates["Trainer"]
    for who, rate in rates.items():
        seconds = statistics.median(run["cpu_s_per_example"] for run in found[who])
        label = f"{case.size}: {who}"
        result.details.append((label, f"{rate:,.1f} examples/s, {seconds * 1000:.2f} ms of CPU an example"))


def _seeds(case: classify.Case, examples: int, folder: Path, result: Result) -> None:
    cores = len(os.sched_getaffinity(0))
    times = apart(tuned.seeds, case, folder, SEEDS, cores, examples)
    result.figures["side_by_side"] = times["in_turn"] / times["together"]
    for way, what in (("in_turn", f"one after another, {cores} cores"), ("together", "side by side, 1 core each")):
        result.details.append((f"{SEEDS} seeds, {what}", f"{times[way]:.1f} s"))


if __name__ == "__main__":
    main("finetune", TARGETS, measure)
