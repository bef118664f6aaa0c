"""Measures the cost of DAS relative to plain training: time and memory of a step, and time of measuring importance.

Plain training and DAS (soft mask of updates; contrast `exact`, `lean`, `economy`) train on the same rows of 164 tokens
in our training loop. Steps alternate in one process. Each time is the median over rounds of the ratio to the plain
step of the same round. `_flops` is the ratio of operation counts, and `_memory` the ratio of peak memory, for which
each side runs in a new process. `importance_steps` is the time to measure importance for general knowledge on 10
batches of 64 rows, divided by the time of a plain step of the paper's 248 rows. `importance_steps_domain` is the same
for importance for a domain. On CPUs, steps and batches have fewer rows, and times are scaled up accordingly.
"""

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import get_args

from adapt.ray.runtime import PROCESS_ENVIRONMENT
from benchmarks.common import Options, Result, Targets, apart, machine, parser_of, peak_bytes, report
from benchmarks.das import Training, config_of, importance_batches, step_of
from benchmarks.ours import alone, settled
from benchmarks.rounds import ROUNDS, Ratio, Watch
from benchmarks.texts import Case, build_model, documents, steps_of

MOST = {"exact": 2.6, "lean": 1.8, "economy": 1.25}
PASSES = {"importance_steps": "general", "importance_steps_domain": "domain"}
TARGETS: Targets = {f"{cost}{kind}": ("<=", most) for kind in ("", "_flops", "_memory") for cost, most in MOST.items()}
TARGETS |= dict.fromkeys(PASSES, ("<=", 3.0))
LENGTH, STEP_ROWS, BATCHES, BATCH_ROWS = 164, 248, 10, 64
WARM_UP = 1


@dataclass(frozen=True)
class Plan:
    """Model, rows and number of rounds of the measurement."""

    case: Case
    rounds: int

    @classmethod
    def of(cls, size: str, options: Options) -> "Plan":
        """Chooses the batch: the batch of the paper on a GPU, and on CPUs a batch that takes some seconds."""
        rows, rounds = (4, ROUNDS) if options.quick else (16, 5)
        if machine()["gpu"]:
            rows, rounds = STEP_ROWS, 3 if options.quick else 10
        return cls(Case(size, "grouped", rows, LENGTH, options.data, options.models), rounds)


def measure(plan: Plan) -> Result:
    """Measures times, numbers of operations, and memory."""
    watch = Watch()
    seconds, operations = apart(_seconds, plan), apart(_operations, plan)
    load = watch.stop()
    peaks = {name: apart(_peak, plan, name) for name in get_args(Training)}
    figures: dict[str, float] = {}
    details: list[tuple[str, str]] = []
    compared: dict[str, Ratio] = {}
    for cost in MOST:
        compared[cost] = Ratio.of(zip(seconds[cost], seconds["plain"], strict=True), load)
        time, count = compared[cost].middle, operations[cost] / operations["plain"]
        figures |= {cost: time, f"{cost}_flops": count, f"{cost}_memory": peaks[cost] / peaks["plain"]}
        details.append((f"{cost}, by operations", f"{time / count:.2f} of what they say"))
    rows = plan.case.rows
    scale = BATCHES * BATCH_ROWS / min(BATCH_ROWS, rows) * rows / STEP_ROWS
    for figure, about in PASSES.items():
        ratio = Ratio.of(zip(seconds[about], seconds["plain"], strict=True), load)
        compared[figure] = replace(ratio, rounds=tuple(scale * each for each in ratio.rounds))
        figures[figure] = compared[figure].middle
        count = BATCHES * BATCH_ROWS / STEP_ROWS * operations[about] / operations["plain"]
        details.append((f"{figure}, by operations", f"{count:.2f}"))
    details += [(f"{name}, peak memory", f"{peak / 2**30:.2f} GiB") for name, peak in peaks.items()]
    details.append(("plain, a step", f"{median(seconds['plain']):.3f} s for {rows} rows of {LENGTH} tokens"))
    return Result({figure: figures[figure] for figure in TARGETS}, details, compared)


def _seconds(plan: Plan) -> dict[str, list[float]]:
    """Returns the time of each kind of step per round [s].

    Kinds alternate, so that other load affects all kinds equally.
    """
    import torch.distributed as dist

    alone()
    steps = WARM_UP + plan.rounds
    works = {name: step_of(plan.case, name, steps) for name in get_args(Training)}
    works |= importance_batches(plan.case, BATCH_ROWS)
    found: dict[str, list[float]] = {name: [] for name in works}
    for number, columns in enumerate(steps_of(plan.case, steps)):
        sides = list(works.items())
        first = number % len(sides)
        for name, work in (*sides[first:], *sides[:first]):
            began = settled()
            work(number, columns)
            found[name].append(settled() - began)
    dist.destroy_process_group()
    return {name: each[WARM_UP:] for name, each in found.items()}


def _peak(plan: Plan, training: Training) -> int:
    """Returns the peak memory of two steps [bytes]. The second step includes the state of the optimizer."""
    import torch.distributed as dist

    alone()
    step = step_of(plan.case, training, 2)
    for number, columns in enumerate(steps_of(plan.case, 2)):
        step(number, columns)
    dist.destroy_process_group()
    return peak_bytes()


def _operations(plan: Plan) -> dict[str, float]:
    """Returns the floating-point operations per token of training steps and of measuring importance.

    Measuring importance takes a forward pass and a backward pass that computes no gradients of weights. For general
    knowledge, each text passes through the model twice (two views), and the model's output head is not used.
    """
    from adapt.method.table import method_of
    from adapt.model.size import model_size
    from adapt.train.capacity.flops import forward_flops, layer_flops, training_flops, workload

    with tempfile.TemporaryDirectory() as folder:
        build_model(plan.case).save_pretrained(folder)
        size = model_size(Path(folder))
    assert size
    ids = documents(plan.case)
    mean = sum(map(len, ids)) / len(ids)
    configs = {name: config_of(plan.case, name) for name in get_args(Training)}
    works = {
        name: workload(each.objective, LENGTH, mean, method_of(each).added_passes()) for name, each in configs.items()
    }
    found = {name: training_flops(size, work) for name, work in works.items()}
    general, domain = 4 * layer_flops(size, works["plain"].context), 2 * forward_flops(size, works["plain"])
    return {**found, "general": general, "domain": domain}


def main() -> None:
    """Measures the cost, prints the table and writes the JSON."""
    parser = parser_of("das_cost", __doc__)
    parser.add_argument("--size", choices=("small", "base", "large"), default="base", help="base and large: RoBERTa's")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    plan = Plan.of(arguments.size, Options(arguments.quick, arguments.data, arguments.models))
    report(f"das_cost ({arguments.size})", TARGETS, measure(plan), arguments.json)


if __name__ == "__main__":
    main()
