"""Runs the demo, which adapts a small language model to technical English."""

from collections.abc import Sequence

from adapt.job import job_of
from adapt.job.job_run import run_and_show
from adapt.parse import parse
from adapt.runner.ensure import unfinished
from adapt.stage.context import Context
from adapt.support.paths import recipe_file
from adapt.terminal.console import log

MODEL = "demo:bert-tiny"
"""The model of the recipe `demo`."""
MOST_TOKENS = 250_000
"""Maximum number of training tokens for which the demo takes at most two minutes on two cores."""


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
    training = context.config.training
    tokens = (training.max_steps or 0) * training.global_batch_size * training.sequence_length
    is_short = context.config.model.path == MODEL and 0 < tokens <= MOST_TOKENS
    if is_short and unfinished([job.final(context)], context.store)[0]:
        log("The demo takes at most two minutes on two cores.")
    run_and_show(job, context, taken)
