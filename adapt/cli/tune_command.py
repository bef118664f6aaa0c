"""Implements `dontstop tune`, which runs and plans searches, and shows their progress."""

from collections.abc import Sequence

from adapt.runner import Finished, Store
from adapt.runner.claim import is_claimed
from adapt.show.blocks import shown_by
from adapt.show.progress.chain_now import TrialsNow
from adapt.show.renderers import show_blocks
from adapt.stage.context import root_of
from adapt.terminal.console import finish, log
from adapt.tuning.search_run import SearchAhead, run_search, search_of_command
from adapt.tuning.search_stage import Search

HELP = """\
dontstop tune --config my.yaml --space SPACE [--job NAME] [--section.field VALUE ...]
dontstop tune plan --config my.yaml --space SPACE     Shows the trials and their device-hours. Nothing runs.
dontstop tune status --config my.yaml --space SPACE   Shows the progress of the search.

Searches for good values of a job's fields by trials. Trials are scored on the dev split and never on the test split.
SPACE is a file, or the name of a search space that comes with the package, such as tapt (see dontstop recipes).

The search shows a table of the trials and writes best.yaml, the configuration of the best trial, which you can pass to
the job with --config. Then it runs the best trial and your own configuration again with fresh seeds, and scores both on
the test split. Fields of the section `tune` set the number of trials, the objectives and the searcher."""


def main(arguments: Sequence[str]) -> None:
    """Runs a command line of `dontstop tune`.

    Args:
        arguments: a verb followed by its arguments. Without a verb, the command runs the search.

    Raises:
        AdaptError: the command fails.
    """
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(HELP)
        return
    verb, *rest = arguments if arguments[0] in ("plan", "status") else ["run", *arguments]
    search = search_of_command(rest)
    {"run": _run, "plan": _plan, "status": _status}[verb](search, Store(root_of(search.config)))


def _plan(search: Search, store: Store) -> None:
    """Shows the trials of a search with a forecast of their cost."""
    ahead = SearchAhead.of(search, store)
    show_blocks(ahead.blocks())
    finish(
        "plan", store.root, {"trials": ahead.count, "stages_to_run": ahead.to_run, "device_hours": ahead.device_hours}
    )


def _status(search: Search, store: Store) -> None:
    """Shows the progress of the trials of a search."""
    store.follow([search])
    folder = store.folder_of(search)
    record, trials = store.record_of(search), TrialsNow.load(folder)
    if record:
        show_blocks(shown_by(Finished.of(search, record).result, record))
    elif trials:
        show_blocks([trials.table()])
    state = "finished" if record else "running" if is_claimed(folder) else "stopped" if trials else "waiting to begin"
    log(f"The search {'has' if state in ('finished', 'stopped') else 'is'} {state}.")
    finish("status", folder, {"state": state, **({"ended": trials.ended, "trials": trials.count} if trials else {})})


def _run(search: Search, store: Store) -> None:
    """Runs the unfinished trials, repeats the best trial with fresh seeds, and finally writes the report."""
    run = run_search(search)
    show_blocks(run.blocks())
    searched = run.searched.result
    counts = {"trials": len(searched.trials), "failed": sum(not row.figures for row in searched.trials)}
    figures = {**counts, "best": searched.best, "device_hours": searched.device_hours}
    if run.confirmed:
        confirmed = run.confirmed.result
        figures |= {name: figure.best.value for name, figure in confirmed.fresh.items()}
        figures |= {name: getattr(confirmed, name) for name in ("apparent", "gained", "selection")}
    finish("tune", run.searched.path, figures)
