"""Weak scaling: how much of two workers' speed is left when they train together, with a core and a batch each.

A job and all its processes have as many cores as it has workers: one worker alone would compute on all that there are.
"""

import json
import os
import statistics
from pathlib import Path

from benchmarks.common import Options, Result, corpus_file, finished, job, main, workplace

TARGETS = {"efficiency_2": (">=", 0.9)}
BATCH, LENGTH, WARM_UP = 64, 128, 3


def measure(options: Options) -> Result:
    """Trains with one worker and with two, in turn, and compares the medians of tokens a second."""
    steps, rounds = (8, 1) if options.quick else (25, 3)
    with workplace() as folder:
        corpus = corpus_file(folder, 4000)
        speeds: dict[int, list[float]] = {1: [], 2: []}
        for seed in range(rounds):
            for workers, seen in speeds.items():
                seen += _speeds(corpus, folder / "runs", workers, steps, seed)
        one, two = (statistics.median(seen) for seen in speeds.values())
        details = [("tokens/s, one worker", f"{one:,.0f}"), ("tokens/s, two workers", f"{two:,.0f}")]
        return Result({"efficiency_2": two / (2 * one)}, details)


def _speeds(corpus: Path, root: Path, workers: int, steps: int, seed: int) -> list[float]:
    name = f"{workers}-{seed}"
    training = [f"--training.max_steps={steps}", f"--training.global_batch_size={BATCH * workers}", "--seed", str(seed)]
    lengths = [f"--training.sequence_length={LENGTH}", f"--evaluation.sequence_length={LENGTH}"]
    where = ["--model.path=demo:bert-tiny", f"--corpus.paths={corpus}", f"--storage.root={root}", "--name", name]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:workers])  # which the job inherits
    try:
        finished(
            job([*where, *training, *lengths, "--training.log_interval_steps=1", f"--resources.workers={workers}"])
        )
    finally:
        os.sched_setaffinity(0, cores)
    (metrics,) = root.glob(f"train/{name}-*/metrics.jsonl")
    reports = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [float(report["tokens_per_s"]) for report in reports[WARM_UP:]]


if __name__ == "__main__":
    main("scaling", TARGETS, measure)
