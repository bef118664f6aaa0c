"""Searches good values for fields of a job, by trials that are measured on dev and never on test.

python jobs/tune.py --config my.yaml --space tune_spaces/tapt.py [--job NAME] [--section.field VALUE ...]
python jobs/tune.py plan --config my.yaml --space ...       shows the trials, and what they will take

It leaves a table of the trials, and best.yaml, which the job takes as --config. Then the best trial is run with fresh
seeds, beside the configuration as it is, and tested. The section `tune` has the settings.
"""

import sys

from adapt.console import finish, run_job
from adapt.runner import Store, ensure
from adapt.stage.context import root_of
from adapt.stage.running import run_stages
from adapt.summary.confirmed import show_confirmed
from adapt.summary.tuned import show_ahead_of_search, show_search
from adapt.tuning.ahead import check_budget, hours_of_all, trials_ahead
from adapt.tuning.command import search_asked
from adapt.tuning.confirm import Confirm
from adapt.tuning.search import Search
from adapt.tuning.values import shown


def main() -> None:
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    arguments = sys.argv[1:]
    search = search_asked(arguments[1:] if arguments[:1] == ["plan"] else arguments)
    store = Store(root_of(search.config))
    if arguments[:1] == ["plan"]:
        plan(search, store)
    else:
        run(search, store)


def plan(search: Search, store: Store) -> None:
    _, asked = search.check()
    ahead = trials_ahead(search, asked, store)
    hours = hours_of_all(ahead, asked.count)
    budget, price = search.config.tune.budget_device_hours, search.config.resources.price_per_device_hour
    total = "an unknown number of device-hours" if hours is None else f"about {hours:.3g} device-hours"
    cost = "" if hours is None or price is None else f", {hours * price:,.2f}"
    limit = "" if budget is None else f"; at most {budget:g} (tune.budget_device_hours)"
    rows = [
        (
            str(each.number),
            ", ".join(f"{name} {shown(value)}" for name, value in each.values.items()) or "as it is",
            each.refused or str(each.to_run),
            str(each.found),
            "not known" if each.device_hours is None else f"{each.device_hours:.3g}",
        )
        for each in ahead
    ]
    later = asked.count + 1 - len(ahead)
    more = f"{later} more follow from the results of these; " if later else ""
    show_ahead_of_search(rows, f"{more}{asked.count + 1} trials will take {total}{cost}{limit}")
    to_run = sum(each.to_run for each in ahead)
    finish("plan", store.root, {"trials": asked.count + 1, "stages_to_run": to_run, "device_hours": hours})


def run(search: Search, store: Store) -> None:
    if not store.known(search.kind, search.name, search.key):
        _, asked = search.check()  # before Ray is started
        check_budget(search, asked, store)
    searched = ensure(search, store)
    show_search(searched.record)
    counts = {"trials": len(searched.result.trials), "failed": sum(not row.figures for row in searched.result.trials)}
    told = {**counts, "best": searched.result.best, "device_hours": searched.result.device_hours}
    if not search.config.tune.fresh_seeds:
        finish("tune", searched.path, told)
        return
    (record,) = run_stages([Confirm.of(search, searched.result)], store, search.config.resources)
    show_confirmed(record)
    fresh = {name: figure["best"]["value"] for name, figure in record.metrics["fresh"].items()}
    gain = {name: record.metrics[name] for name in ("apparent", "gained", "selection")}
    finish("tune", searched.path, {**told, **fresh, **gain})


if __name__ == "__main__":
    run_job(main)
