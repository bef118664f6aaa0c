"""Measures the cost of methods against forgetting relative to plain training: time of a step, and memory.

Plain training, and every method with its default options, train a model of RoBERTa-base's size on the same rows of 164
tokens, in our training loop. `NAME_time` is the median over rounds of the ratio of step times within a round. For each
method, a new process holds the method's model and the plain model. `NAME_memory` is the ratio of the peak memory of two
steps. Each side runs in a new process, whose memory includes the libraries. On CPUs, steps have fewer rows, so costs
that do not depend on rows weigh more.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from adapt.config import Config, MethodConfig, TrainingConfig
from adapt.ray.runtime import PROCESS_ENVIRONMENT
from benchmarks.common import Options, Result, Targets, apart, machine, parser_of, peak_bytes, report
from benchmarks.das import method_step
from benchmarks.ours import alone, settled
from benchmarks.rounds import ROUNDS, Ratio, Watch
from benchmarks.texts import Case, steps_of

MOST = {
    "interpolate": (1.05, 1.05),
    "freeze": (1.0, 1.0),
    "lora": (1.3, 1.0),
    "adapters": (1.2, 1.0),
    "l2sp": (1.1, 1.3),
    "ewc": (1.1, 1.5),
    "distill": (1.45, 1.3),
    "elle": (1.8, 1.7),  # two additional layers and two additional heads
    "hat": (1.4, 1.2),
    "cpt": (1.4, 1.2),
    "prompt": (1.7, 1.2),  # 100 vectors before each row of 164 tokens
    "prefix": (1.4, 1.2),
    "demix": (1.05, 1.0),
    "das": (2.3, 1.5),
}
"""Maximum ratios of time and of memory. Methods that are missing here take the same steps as plain training."""
TARGETS: Targets = {
    f"{name}_{figure}": ("<=", most)
    for name, both in MOST.items()
    for figure, most in zip(("time", "memory"), both, strict=True)
}
LENGTH, STEP_ROWS = 164, 248
WARM_UP = 1


@dataclass(frozen=True)
class MethodsPlan:
    """Model, rows and number of rounds of the measurement."""

    case: Case
    rounds: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, size: str, options: Options, names: Sequence[str]) -> "MethodsPlan":
        """Chooses the batch: the batch of the paper on a GPU, and on CPUs a batch that takes some seconds."""
        rows, rounds = (4, ROUNDS) if options.quick else (16, 5)
        if machine()["gpu"]:
            rows, rounds = STEP_ROWS, 3 if options.quick else 10
        return cls(Case(size, "grouped", rows, LENGTH, options.data, options.models), rounds, tuple(names))


def config_with(case: Case, method: str) -> Config:
    """Returns the configuration of a job that trains with the given method."""
    training = TrainingConfig(global_batch_size=case.rows, sequence_length=case.length, learning_rate=1e-4)
    return Config(training=training, method=MethodConfig(method))


def measure(plan: MethodsPlan) -> Result:
    """Measures times and peak memory."""
    plain = apart(_peak, plan, "plain")
    result = Result({}, [("plain, peak memory", f"{plain / 2**30:.2f} GiB")])
    for name in plan.names:
        watch = Watch()
        own, beside = apart(_seconds, plan, name)
        result.compare(f"{name}_time", Ratio.of(zip(own, beside, strict=True), watch.stop()))
        peak = apart(_peak, plan, name)
        result.figures[f"{name}_memory"] = peak / plain
        result.details.append((name, f"{median(own):.3f} s against {median(beside):.3f} s"))
        result.details.append((f"{name}, peak memory", f"{peak / 2**30:.2f} GiB"))
    return result


def _seconds(plan: MethodsPlan, method: str) -> tuple[list[float], list[float]]:
    """Returns the times of steps with a method and of plain steps [s]. The two kinds of step alternate."""
    import torch.distributed as dist

    alone()
    steps = WARM_UP + plan.rounds
    works = [method_step(plan.case, config_with(plan.case, name), steps) for name in (method, "plain")]
    found: tuple[list[float], list[float]] = [], []
    for number, columns in enumerate(steps_of(plan.case, steps)):
        sides = list(zip(works, found, strict=True))
        for work, seconds in sides if number % 2 else sides[::-1]:
            began = settled()
            work(number, columns)
            seconds.append(settled() - began)
    dist.destroy_process_group()
    return found[0][WARM_UP:], found[1][WARM_UP:]


def _peak(plan: MethodsPlan, method: str) -> int:
    """Returns the peak memory of two steps [bytes]. The second step includes the state of the optimizer."""
    import torch.distributed as dist

    alone()
    step = method_step(plan.case, config_with(plan.case, method), 2)
    for number, columns in enumerate(steps_of(plan.case, 2)):
        step(number, columns)
    dist.destroy_process_group()
    return peak_bytes()


def main() -> None:
    """Measures the costs, prints the table and writes the JSON."""
    parser = parser_of("methods", __doc__)
    parser.add_argument("--size", choices=("small", "base", "large"), default="base", help="base and large: RoBERTa's")
    parser.add_argument("--only", default=",".join(MOST), help="methods, by commas")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options = Options(arguments.quick, arguments.data, arguments.models)
    plan = MethodsPlan.of(arguments.size, options, arguments.only.split(","))
    report(f"methods ({arguments.size})", TARGETS, measure(plan), arguments.json)


if __name__ == "__main__":
    main()
