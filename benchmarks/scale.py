"""Shows how far the project scales: DAPT on 8 to 1,024 GPUs (estimated), and the runner with 10,000 stages (measured).

`wide_10k_cpu_s` and `deep_10k_cpu_s` are the CPU times to run 10,000 stages that each write one line: independent
stages, and a chain in which each stage reads the previous one. `plan_10k_cpu_s` is the CPU time of planning the
finished chain again. The disk adds the time of five flushes per stage, which is in the details.

The estimate for a step takes the time of the arithmetic from a published utilization (MFU), and adds the time of the
communication, without overlap and without latency (`step_seconds`). docs/develop/scale.md has the table, and the MFU of
this project on an H200.
"""

import io
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass

from adapt.runner import Store, ensure
from adapt.runner.ensure import ensure_all, plan_stages
from benchmarks.chain import Trivial
from benchmarks.common import Options, Result, main, workplace

TARGETS = {"wide_10k_cpu_s": ("<=", 500.0), "deep_10k_cpu_s": ("<=", 500.0), "plan_10k_cpu_s": ("<=", 20.0)}
STAGES = 10_000
STEPS, ROWS, LENGTH = 12_500, 2048, 512
"""DAPT in Don't Stop Pretraining (arXiv 2004.10964): number of steps, rows per step, and tokens per row."""
FP32_BYTES = 4
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU and its network. The defaults describe machines with 8 A100 80 GB each."""

    peak_flops: float = 312e12
    """Dense bf16 rate (NVIDIA A100 datasheet) [FLOP/s]."""
    mfu: float = 0.4256
    """Model FLOPs utilization of MPT-125M with rows of 512 tokens on 8 GPUs (mosaicml/llm-foundry,
    scripts/train/benchmarking). docs/develop/scale.md compares it with the MFU of this project."""
    per_machine: int = 8
    inside: float = 300e9
    """Rate of NVLink in one direction (NVIDIA A100 datasheet: 600 GB/s in both) [bytes/s]."""
    between: float = 25e9
    """Network rate per GPU between machines, in one direction [bytes/s]. A machine of 8 GPUs has 1,600 Gbit/s, like the
    machines in the benchmark of the MFU."""


A100 = Gpu()


@dataclass(frozen=True)
class Model:
    """Properties of a language model that determine the time of a step."""

    parameters: int
    flops_per_token: float
    """FLOPs of a forward and backward pass (`adapt.train.capacity.flops.training_flops`)."""


def roberta_base() -> Model:
    """Returns RoBERTa-base with 15% predicted tokens and rows of 512 tokens."""
    layers, width, vocabulary, positions = 12, 768, 50_265, 514
    matrices = layers * 12 * width**2
    head = width**2 + width * vocabulary
    attention = 4 * width * LENGTH * layers
    # Biases and norms. A layer has 13 vectors of the width (the inner bias counts as 4). Embeddings and head have more.
    vectors = layers * 13 * width + 2 * width + 3 * width + vocabulary
    parameters = matrices + width * (vocabulary + positions + 1) + width**2 + vectors
    return Model(parameters, 3 * (2 * matrices + attention + 2 * 0.15 * head))


def sent_bytes(parameters: int, devices: int, zero_stage: int, passes: int, size: int = FP32_BYTES) -> float:
    """Returns how many bytes each device sends per step.

    A ring of N devices moves (N - 1) / N of the data in a reduce-scatter or an all-gather, and twice that in an
    all-reduce (Thakur et al. 2005, doi 10.1177/1094342005051521). With P parameters, ZeRO 0 all-reduces the gradients
    and ZeRO 1 reduce-scatters them and all-gathers the parameters, both 2P per step. ZeRO 2 reduce-scatters in each
    pass: (passes + 1) P. ZeRO 3 also gathers the parameters before each forward and each backward pass: 3 passes P
    (Rajbhandari et al., arXiv 1910.02054, section 7).

    Args:
        parameters: number of parameters.
        devices: number of devices.
        zero_stage: ZeRO stage, from 0 to 3.
        passes: number of micro-batches per step on each device.
        size: bytes per element. Our engine sums gradients and gathers parameters in fp32.
    """
    volumes = {0: 2, 1: 2, 2: passes + 1, 3: 3 * passes}
    return volumes[zero_stage] * parameters * size * (devices - 1) / devices


def passes_of(devices: int, rows_per_pass: int = 64) -> int:
    """Returns the number of micro-batches per step, if a pass has at most `rows_per_pass` rows."""
    return max(1, -(-ROWS // (devices * rows_per_pass)))


def step_seconds(model: Model, devices: int, zero_stage: int, gpu: Gpu = A100) -> tuple[float, float]:
    """Returns the time of the arithmetic and the time of the communication of a step [s].

    The arithmetic is divided evenly and runs at a constant utilization. The ring is as fast as its slowest link.
    """
    arithmetic = model.flops_per_token * ROWS * LENGTH / (devices * gpu.peak_flops * gpu.mfu)
    link = gpu.inside if devices <= gpu.per_machine else gpu.between
    return arithmetic, sent_bytes(model.parameters, devices, zero_stage, passes_of(devices)) / link


def dapt_table(gpu: Gpu = A100) -> str:
    """Returns a Markdown table: hours of DAPT for each number of GPUs, and the efficiency of each ZeRO stage."""
    model = roberta_base()
    header = ["GPUs", "rows per GPU", "hours at ZeRO 1", "efficiency at ZeRO 1", "ZeRO 2", "ZeRO 3"]
    lines = [header, ["--:"] * len(header)]
    for devices in GPUS:
        parts = {stage: step_seconds(model, devices, stage, gpu) for stage in (1, 2, 3)}
        shares = [f"{arithmetic / (arithmetic + sent):.0%}" for arithmetic, sent in parts.values()]
        hours = STEPS * sum(parts[1]) / 3600
        lines.append([f"{devices:,}", str(ROWS // devices), f"{hours:.2f}", *shares])
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def measure(options: Options) -> Result:
    """Runs many trivial stages, so that almost all of the time is spent in the runner."""
    count = STAGES // 20 if options.quick else STAGES
    with workplace() as folder, redirect_stderr(io.StringIO()):  # each stage logs two lines
        wide, deep = Store(folder / "wide"), Store(folder / "deep")
        times = {
            "wide": _seconds(lambda: ensure_all(independent(count), wide, None, 16)),
            "deep": _seconds(lambda: ensure(chained(count), deep)),
            "plan": _seconds(lambda: plan_stages(chained(count), deep)),
        }
    figures = {f"{name}_10k_cpu_s": cpu * STAGES / count for name, (cpu, _) in times.items()}
    model = roberta_base()
    details = [(f"{name}, {count:,} stages, on the clock", f"{clock:.1f} s") for name, (_, clock) in times.items()]
    details += [("parameters", f"{model.parameters:,}"), ("FLOPs per token", f"{model.flops_per_token:.3g}")]
    for devices in GPUS:
        hours = STEPS * sum(step_seconds(model, devices, 1)) / 3600
        details.append((f"DAPT on {devices:,} GPUs at ZeRO 1, by the model", f"{hours:.2f} h"))
    return Result(figures, details)


def independent(count: int) -> list[Trivial]:
    """Returns stages that do not depend on each other."""
    return [Trivial(f"stage-{number}", number, None) for number in range(count)]


def chained(count: int) -> Trivial:
    """Returns the last stage of a chain in which each stage reads the previous stage."""
    last: Trivial | None = None
    for number in range(count):
        last = Trivial(f"stage-{number}", number, last)
    assert last
    return last


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the CPU time and the elapsed time of some work [s]."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - cpu, time.perf_counter() - began


if __name__ == "__main__":
    main("scale", TARGETS, measure)
