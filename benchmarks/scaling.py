"""Measures weak scaling: the speed of two workers that train together, divided by twice the speed of one worker.

All processes of a job together get as many cores as the job has workers; otherwise one worker would use all cores.
"""

import json
import os
import statistics
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.common import Options, Result, corpus_file, finished, job, main, workplace
from benchmarks.rounds import alternate

TARGETS = {"efficiency_2": (">=", 0.9)}
BATCH, LENGTH, WARM_UP = 64, 128, 3


def measure(options: Options) -> Result:
    """Trains with one worker and with two, in turn, and compares the median tokens per second."""
    steps = 8 if options.quick else 25
    with workplace() as folder:
        corpus = corpus_file(folder, 4000)
        seeds = {workers: count() for workers in (1, 2)}

        def of(workers: int) -> float:
            seen = _speeds(corpus, folder / "runs", workers, steps, next(seeds[workers]))
            return statistics.median(seen)

        found = alternate({str(workers): partial(of, workers) for workers in seeds})
        names = (("1", "one worker"), ("2", "two workers"))
        result = Result({}, [(f"tokens/s, {name}", f"{found.middle(side, float):,.0f}") for side, name in names])
        ratio = found.ratio("2", "1", float)
        result.compare("efficiency_2", replace(ratio, rounds=tuple(each / 2 for each in ratio.rounds)))
        return result


def _speeds(corpus: Path, root: Path, workers: int, steps: int, seed: int) -> list[float]:
    name = f"{workers}-{seed}"
    training = [f"--training.max_steps={steps}", f"--training.global_batch_size={BATCH * workers}", "--seed", str(seed)]
    lengths = [f"--training.sequence_length={LENGTH}", f"--evaluation.sequence_length={LENGTH}"]
    where = ["--model.path=demo:bert-tiny", f"--corpus.paths={corpus}", f"--storage.root={root}", "--name", name]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:workers])  # the job's process inherits this set of cores
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
