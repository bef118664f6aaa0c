"""Searches good values for fields of a job, by trials that are measured on dev and never on test.

python jobs/tune.py --config my.yaml --space tune_spaces/tapt.py [--job NAME] [--section.field VALUE ...]
python jobs/tune.py plan --config my.yaml --space ...       shows the trials, and what they will take
python jobs/tune.py status --config my.yaml --space ...     shows how far they are

It leaves a table of the trials, and best.yaml, which the job takes as --config. Then the best trial is run with fresh
seeds, beside the configuration as it is, and tested. The section `tune` has the settings.
"""

import sys

from adapt.console import finish, log, run_job
from adapt.report.entry import HTML, Entry, Study
from adapt.runner import Finished, Store, ensure
from adapt.runner.lock import is_held
from adapt.runner.record import RECORD_FILE
from adapt.stage.context import root_of
from adapt.stage.running import run_stages
from adapt.summary.confirmed import show_confirmed
from adapt.summary.tables import show
from adapt.summary.trials import TrialsNow, trials_table
from adapt.summary.tuned import show_ahead_of_search, show_search
from adapt.tuning.ahead import SearchAhead, check_search
from adapt.tuning.command import search_asked
from adapt.tuning.confirm import Confirm
from adapt.tuning.search import Search


def main() -> None:
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    verb, *arguments = sys.argv[1:] if sys.argv[1:2] in (["plan"], ["status"]) else ["run", *sys.argv[1:]]
    search = search_asked(arguments)
    {"run": run, "plan": plan, "status": status}[verb](search, Store(root_of(search.config)))


def plan(search: Search, store: Store) -> None:
    ahead = SearchAhead.of(search, store)
    show_ahead_of_search(ahead.rows(), ahead.total())
    finish(
        "plan", store.root, {"trials": ahead.count, "stages_to_run": ahead.to_run, "device_hours": ahead.device_hours}
    )


def status(search: Search, store: Store) -> None:
    folder = store.folder(search.kind, search.name, search.key)
    record, trials = store.known(search.kind, search.name, search.key), TrialsNow.load(folder)
    if record:
        show_search(record)
    elif trials:
        show(trials_table(trials))
    state = "finished" if record else "running" if is_held(folder) else "stopped" if trials else "waiting to begin"
    log(f"the search {'has' if state in ('finished', 'stopped') else 'is'} {state}")
    finish("status", folder, {"state": state, **({"ended": trials.ended, "trials": trials.count} if trials else {})})


def run(search: Search, store: Store) -> None:
    check_search(search, store)
    searched = ensure(search, store)
    show_search(searched.record)
    entries = [Entry(search.name, search.job.name, {}, searched)]
    counts = {"trials": len(searched.result.trials), "failed": sum(not row.figures for row in searched.result.trials)}
    told = {**counts, "best": searched.result.best, "device_hours": searched.result.device_hours}
    if not search.config.tune.fresh_seeds:
        report(search, entries, store)
        finish("tune", searched.path, told)
        return
    confirm = Confirm.of(search, searched.result)
    (record,) = run_stages([confirm], store, search.config.resources)
    show_confirmed(record)
    report(search, [*entries, Entry(search.name, search.job.name, {}, Finished.of(confirm, record))], store)
    fresh = {name: figure["best"]["value"] for name, figure in record.metrics["fresh"].items()}
    gain = {name: record.metrics[name] for name in ("apparent", "gained", "selection")}
    finish("tune", searched.path, {**told, **fresh, **gain})


def report(search: Search, entries: list[Entry], store: Store) -> None:
    """Writes the report, unless it is newer than all that it would tell."""
    folder = store.root / "reports" / f"search-{search.name}"
    page, records = folder / HTML, [entry.record.path / RECORD_FILE for entry in entries]
    if not page.exists() or any(record.stat().st_mtime > page.stat().st_mtime for record in records):
        from adapt.report.write import write_report

        write_report(Study(search.name, "base", entries), folder)
    log(f"report: {page}")


if __name__ == "__main__":
    run_job(main)
