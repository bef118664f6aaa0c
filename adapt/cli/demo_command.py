"""Runs the demo, which adapts a small language model to technical English, after a forecast of its time."""

import ast
import time
from collections.abc import Sequence
from pathlib import Path

from adapt.config import Config
from adapt.job import job_of
from adapt.job.job_run import run_and_show
from adapt.parse import parse
from adapt.runner.ensure import unfinished
from adapt.stage.context import Context
from adapt.support.shipped import recipe_file
from adapt.terminal.console import duration, log

MODEL = "demo:bert-tiny"
"""The model of the demo. The times below were measured with this model."""
PARSED = 1000
"""Number of times that this source file is parsed to measure the machine's speed. The total CPU time of these parses is
called a yardstick, and is the unit of the times below."""
START = 100.0
"""Time of the demo without training steps: starting Ray, reading, tokenizing and evaluating [yardsticks]."""
PER_MILLION_TOKENS = 250.0
"""Time of the training steps [yardsticks per million tokens]."""
BUSY = 1.5
"""If the elapsed time exceeds the CPU time by this factor, a message says that other processes slow down the demo."""


def main(arguments: Sequence[str]) -> None:
    """Runs the demo and shows its result.

    Args:
        arguments: fields that replace fields of the recipe, as for `dontstop dapt`.

    Raises:
        AdaptError: the demo fails, in the same cases as `dontstop dapt`.
    """
    job = job_of("dapt")
    taken = [f"--config={recipe_file('demo')}", *arguments]
    context = Context.of(parse(taken, "dontstop demo", job.kind))
    length = length_in_yardsticks(context.config)
    if length and unfinished([job.final(context)], context.store)[0]:
        log(time_forecast(length, *yardstick_s()))
    run_and_show(job, context, taken)


def length_in_yardsticks(config: Config) -> float | None:
    """Computes the time of the demo [yardsticks]. Returns None if the model or the number of steps was changed."""
    training = config.training
    if config.model.path != MODEL or not training.max_steps:
        return None
    tokens = training.max_steps * training.global_batch_size * training.sequence_length
    return START + PER_MILLION_TOKENS * tokens / 1e6


def time_forecast(length: float, cpu_s: float, wall_s: float) -> str:
    """Describes in a sentence how long the demo takes on this machine.

    Args:
        length: time of the demo [yardsticks].
        cpu_s: CPU time of the yardstick [s].
        wall_s: elapsed time of the yardstick [s].
    """
    idle = duration(max(10.0, round(length * cpu_s, -1)))
    if wall_s < BUSY * cpu_s:
        return f"The demo takes about {idle} on this machine."
    return (
        f"The demo takes about {idle} on this machine when it is idle. Other processes are running now, so it takes"
        " longer."
    )


def yardstick_s() -> tuple[float, float]:
    """Parses this file PARSED times, and returns the CPU time and the elapsed time of all these parses [s]."""
    source = Path(__file__).read_bytes()
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(PARSED):
        ast.parse(source)
    return time.process_time() - start_cpu, time.perf_counter() - start
