"""Runs `dontstop tune`: reads its command line, runs the trials, confirms the best one, and writes the report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from adapt.config import Config
from adapt.job import JOBS, job_of
from adapt.job.job_run import Job, run_stages
from adapt.parse import parse
from adapt.parse.command_line import read_given
from adapt.runner import Finished, Store, ensure
from adapt.runner.digest import Digests
from adapt.runner.mirror import upload_results
from adapt.runner.notifications import notifying
from adapt.runner.record import RECORD_FILE
from adapt.runner.stage import canonical
from adapt.show.blocks import Block, TextBlock, first_sentence
from adapt.show.renderers import SelfShown
from adapt.show.report.study import HTML, Entry, Study
from adapt.stage.context import Context, root_of
from adapt.support.errors import ConfigError, nearest
from adapt.support.shipped import space_file, spaces
from adapt.tuning.confirm import Confirm, Confirmed
from adapt.tuning.job_trial import Configure, on_dev, trial_of
from adapt.tuning.search_forecast import check_search
from adapt.tuning.search_stage import BEST_FILE, Search, Searched


@dataclass(frozen=True)
class SearchRun(SelfShown):
    """The result of a search. `print(search)` shows all trials, and the gain of the best configuration."""

    searched: Finished[Searched]
    confirmed: Finished[Confirmed] | None
    """Result of the best configuration with fresh seeds; None if `tune.fresh_seeds` is empty."""
    report: Path
    """The HTML file of the report."""

    @property
    def best(self) -> Path:
        """The configuration file of the best trial, for `--config` of the job."""
        return self.searched.path / BEST_FILE

    def blocks(self) -> list[Block]:
        """Returns the table of trials, the gain of the best one, and the path of the report."""
        confirmed = self.confirmed.result.blocks(self.confirmed.record) if self.confirmed else []
        return [*self.searched.result.blocks(self.searched.record), *confirmed, TextBlock(f"Report: {self.report}")]


def run_search(search: Search) -> SearchRun:
    """Runs all unfinished trials, then the best trial with fresh seeds, and writes the report.

    Raises:
        AdaptError: the search cannot work, or all trials failed.
    """
    store = Store(root_of(search.config))
    if search.config.resources.budget:
        raise ConfigError("a search takes no resources.budget", "set tune.budget_device_hours, which limits its trials")
    check_search(search, store)
    with notifying(search.config.notify, f"tune {search.name}") as finished:
        will_run = store.record_of(search) is None
        run = _search_and_confirm(search, store)
        if will_run:
            finished(first_sentence(run.blocks()), run.report)
    return run


def _search_and_confirm(search: Search, store: Store) -> SearchRun:
    searched = ensure(search, store)
    entries = [Entry(search.name, search.job.name, {}, searched)]
    confirmed: Finished[Confirmed] | None = None
    if search.config.tune.fresh_seeds:
        confirm = Confirm.of(search, searched.result)
        (record,) = run_stages([confirm], store, search.config.resources)
        confirmed = Finished.of(confirm, record)
        entries.append(Entry(search.name, search.job.name, {}, confirmed))
    return SearchRun(searched, confirmed, _report(search, entries, store))


def _report(search: Search, entries: list[Entry], store: Store) -> Path:
    """Writes the HTML report, unless it is newer than all its records, and returns its path."""
    folder = store.root / "reports" / f"search-{search.name}"
    page, records = folder / HTML, [entry.record.path / RECORD_FILE for entry in entries]
    if not page.exists() or any(record.stat().st_mtime > page.stat().st_mtime for record in records):
        from adapt.show.report.report_page import write_report

        write_report(Study(search.name, "base", entries), folder)
        upload_results(folder)
    return page


PROGRAM = "dontstop tune"
SHORT = {"--space": "--tune.space", "--job": "--tune.job"}
"""Full names of the short options of `dontstop tune`."""


def search_of_command(arguments: Sequence[str]) -> Search:
    """Returns the search that the command line describes.

    Raises:
        AdaptError: the command line names no space or an unknown job, or the configuration cannot work.
    """
    arguments = [_long(argument) for argument in arguments]
    tune = read_given(arguments).get("tune")
    job = job_searched(tune if isinstance(tune, Mapping) else {})
    configure: Configure = partial(_configured, arguments, job)
    return search_of(job, configure({}), configure)


def _long(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"{SHORT.get(name, name)}{equals}{value}"


def job_searched(tune: Mapping[str, Any]) -> Job:
    """Returns the searched job: `tune.job`, or else the job that the file of the space is named after.

    Raises:
        ConfigError: no job has this name.
    """
    space = str(tune.get("space") or "")
    if name := tune.get("job"):
        return job_of(str(name))
    if Path(space).stem in JOBS:
        return JOBS[Path(space).stem]
    raise ConfigError(
        f"no job to search is named{f', and {space} does not have the name of a job' if space else ''}",
        "name it: --job tapt",
    )


def _configured(arguments: Sequence[str], job: Job, values: Mapping[str, Any]) -> Config:
    given = [f"--{name}={value if isinstance(value, str) else canonical(value)}" for name, value in values.items()]
    return parse([*arguments, *given], PROGRAM, job.kind)


def search_of(
    job: Job,
    config: Config,
    configure: Configure,
    context_of: Callable[[Config], Context] = Context.of,
    given: tuple[Any, ...] = (),
) -> Search:
    """Returns the search of a configuration. The space and the objectives are checked later, by `check_search`.

    Args:
        job: the job whose fields are searched.
        config: the unchanged configuration.
        configure: returns the configuration of a trial.
        context_of: returns the context from which the stages of a configuration are created.
        given: inputs that all trials share and that the search does not run: initial models, selections, or None.

    Raises:
        AdaptError: the configuration, the space or an objective cannot work.
    """
    if not config.tune.space:
        raise ConfigError("tune.space is empty", "name a space or its file: --space tapt (dontstop recipes lists them)")
    space = space_file(config.tune.space)
    if not Path(space).is_file():
        raise ConfigError(
            f"tune.space: there is no file {config.tune.space}", nearest(config.tune.space, spaces(), "check the path")
        )
    digests = Digests.below(root_of(config))
    digest = digests.of(Path(space))
    as_it_is = trial_of(job, on_dev(config), context_of).key
    return Search(config.name, job, config, configure, space, digest, as_it_is, context_of, given)
