"""Runs one job: builds its stages, runs those that are not finished, and hands back the result."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from adapt.console import finish
from adapt.errors import ConfigError
from adapt.job.job import Job
from adapt.parse import parse
from adapt.runner import Finished, ensure
from adapt.runner.run import check_ahead, unfinished
from adapt.show.blocks import Block, shown_by
from adapt.stage.context import Context
from adapt.stage.running import run_stages


@dataclass(frozen=True, eq=False)
class JobRun:
    """A job that has run."""

    job: Job
    context: Context
    finished: Finished[Any]
    """Its last stage."""
    arguments: Sequence[str] = ()
    """The command line."""

    @cached_property
    def result(self) -> Any:
        """The job's result: a dataclass."""
        if self.job.answer:
            return self.job.answer(self.context, self.finished, self.arguments)
        return self.finished.result

    def model_folder(self, share: float | None = None) -> Path:
        """The folder of the model that the job made.

        Args:
            share: of a merge with several shares, the one whose model is meant.

        Raises:
            ConfigError: the job makes no model, or none with this share, or several.
        """
        made = getattr(self.result, "models_made", None)
        if made is None:
            raise ConfigError(f"job {self.job.name} makes no model here", "read its result, or run dapt, tapt or merge")
        folders: dict[str, Path] = made(self.finished.record)
        name = "" if share is None else f"{share:g}"
        if name not in folders:
            known = ", ".join(folders) or "none"
            raise ConfigError(f"there is no model of share {name or '(none given)'}", f"give one of: {known}")
        return folders[name]

    def figures(self) -> Mapping[str, Any]:
        """The result as plain values, for the line that machines read."""
        return asdict(self.result) if self.job.answer else self.finished.record.metrics

    def blocks(self) -> list[Block]:
        """What people are shown."""
        return shown_by(self.result, self.finished.record)


def run_stages_of(job: Job, context: Context, arguments: Sequence[str] = ()) -> JobRun:
    """Runs what is not finished of a job.

    Args:
        job: to run.
        context: what its stages are made from.
        arguments: the command line, where there is one.

    Raises:
        AdaptError: the configuration or the data are wrong, or a stage failed.
    """
    stage, store, resources = job.final(context), context.store, context.config.resources
    context.digests.save()
    if not job.is_wide:
        return JobRun(job, context, ensure(stage, store), arguments)
    check_ahead(unfinished([stage], store)[0], store)
    if job.first:
        run_stages(job.first(stage), store, resources)
    (record,) = run_stages([stage], store, resources)
    return JobRun(job, context, Finished.of(stage, record), arguments)


def carry_out(job: Job, arguments: Sequence[str]) -> None:
    """What `python jobs/NAME.py` does: parses, runs, shows the result.

    Raises:
        AdaptError: as `run_stages_of`, or the command line is wrong.
    """
    run_and_show(job, Context.of(parse(arguments, f"dontstop {job.name}", job.kind)), arguments)


def run_and_show(job: Job, context: Context, arguments: Sequence[str]) -> None:
    """Runs a job, shows people its result, and prints the line that machines read.

    Args:
        job: to run.
        context: what its stages are made from.
        arguments: the command line.

    Raises:
        AdaptError: as `run_stages_of`.
    """
    from adapt.show.terminal import show_blocks

    run = run_stages_of(job, context, arguments)
    show_blocks(run.blocks())
    finish(job.name, run.finished.path, dict(run.figures()))
