"""Measures the time that held-out losses take while a model trains, compared with the limit `evaluation.share`.

Training runs with `evaluation.interval_steps` alternate with runs without it, on the same batches. Each run reports how
long its measurements took. The share is the time of a run's measurements, divided by the sum of this time and the time
of the run's steps. The weights of both kinds of run must be equal, bit for bit.
"""

import hashlib
import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Options, Result, corpus_file, finished, job, main, workplace
from benchmarks.rounds import ROUNDS, Ratio, Watch

SHARE = 0.02
TARGETS = {"time_over_share": ("<=", 0.01), "equal_weights": (">=", 1.0)}
BATCH, LENGTH = 16, 128


def measure(options: Options) -> Result:
    """Trains in alternating rounds with and without measurements."""
    steps, rounds, interval = (60, ROUNDS, 20) if options.quick else (300, ROUNDS, 50)
    with workplace() as folder:
        corpus = corpus_file(folder, 4000)
        arguments = ["--model.path=demo:bert-tiny", f"--corpus.paths={corpus}", "--corpus.heldout_fraction=0.1"]
        found: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
        watch = Watch()
        for seed in range(rounds):
            for side in sorted(found, reverse=bool(seed % 2)):
                more = [f"--evaluation.interval_steps={interval}"] if side == "with" else []
                root = folder / f"{side}-{seed}"
                found[side].append(_trained([*arguments, *more], root, steps, seed))
        load = watch.stop()
    shares = [training["metrics"]["evaluation_share"] for training in found["with"]]
    (sampling,) = {json.dumps(training["metrics"]["sampling"]) for training in found["with"]}
    stated = json.loads(sampling)
    same = [one["weights"] == other["weights"] for one, other in zip(found["with"], found["without"], strict=True)]
    details = [
        ("stated share of the compute", f"{stated['share']:.2%} (evaluation.share {SHARE:.0%})"),
        ("share of the time, by round", ", ".join(f"{share:.2%}" for share in shares)),
        ("measured", f"{stated['documents']['domain']} documents every {stated['interval']} of {steps} steps"),
        ("equal weights with and without", f"{sum(same)} of {len(same)}"),
    ]
    result = Result({"time_over_share": median(shares) - SHARE, "equal_weights": float(all(same))}, details)
    result.ratios["time_over_share"] = Ratio(tuple(share - SHARE for share in shares), rounds * load.is_noisy)
    return result


def _trained(arguments: list[str], root: Path, steps: int, seed: int) -> dict[str, Any]:
    """Trains a model, and returns the metrics of its record and a digest of its weights."""
    training = {"max_steps": steps, "global_batch_size": BATCH, "sequence_length": LENGTH, "micro_batch": BATCH}
    fixed = [f"--training.{name}={value}" for name, value in training.items()]
    small = [f"--evaluation.sequence_length={LENGTH}", "--evaluation.max_documents=300", f"--seed={seed}"]
    finished(job([*arguments, *fixed, *small, f"--evaluation.share={SHARE}", f"--storage.root={root}"]))
    (record,) = (root / "train").glob("*/stage.json")
    weights = hashlib.sha256((record.parent / "model" / "model.safetensors").read_bytes()).hexdigest()
    return {"metrics": json.loads(record.read_text())["metrics"], "weights": weights}


if __name__ == "__main__":
    main("evaluation_cost", TARGETS, measure)
