"""Searches good values for fields of a job, by trials that are measured on dev and never on test.

python jobs/tune.py --config my.yaml --space tune_spaces/tapt.py [--job NAME] [--section.field VALUE ...]

It leaves a table of the trials, and best.yaml, which the job takes as --config. The section `tune` has the settings.
"""

import sys

from adapt.console import finish, run_job
from adapt.runner import Store, ensure
from adapt.stage.context import root_of
from adapt.summary.tuned import show_search
from adapt.tuning.command import search_asked


def main() -> None:
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    search = search_asked(sys.argv[1:])
    store = Store(root_of(search.config))
    if not store.known(search.kind, search.name, search.key):
        search.check()  # before anything that it needs, or Ray, is started
    finished = ensure(search, store)
    show_search(finished.record)
    result = finished.result
    best = next(row for row in result.trials if row.number == result.best)
    figures = {name: figure.value for name, figure in best.figures.items() if name in result.objectives}
    counts = {"trials": len(result.trials), "failed": sum(not row.figures for row in result.trials)}
    finish("tune", finished.path, {**counts, "best": best.number, **figures, "device_hours": result.device_hours})


if __name__ == "__main__":
    run_job(main)
