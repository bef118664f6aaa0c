"""Runs one job: parses, builds its stages, runs what is not done, shows the result."""

from collections.abc import Sequence

from adapt.console import finish
from adapt.job.job import Job
from adapt.parse import parse
from adapt.runner import Finished, ensure
from adapt.stage.context import Context
from adapt.stage.running import run_stages


def carry_out(job: Job, arguments: Sequence[str]) -> None:
    """What `python jobs/NAME.py` does.

    Raises:
        AdaptError: something that was given is wrong, or a stage failed.
    """
    context = Context.of(parse(arguments, f"jobs/{job.name}.py", job.kind))
    stage, store, resources = job.final(context), context.store, context.config.resources
    context.digests.save()
    if job.is_wide:
        if job.first:
            run_stages(job.first(stage), store, resources)
        (record,) = run_stages([stage], store, resources)
        finished = Finished.of(stage, record)
    else:
        finished = ensure(stage, store)
    finish(job.name, finished.path, dict(job.show(context, finished, arguments)))
