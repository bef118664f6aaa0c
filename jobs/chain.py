"""Runs a chain of stages from one file, or looks at it.

python jobs/chain.py run FILE      what is not finished, side by side as far as there is room; then the report
python jobs/chain.py plan FILE     what would run, and what it will take
python jobs/chain.py status FILE   what is finished, running and waiting
python jobs/chain.py report FILE   the report of what is finished

--only task=acl_arc,scierc keeps to some members of a set, --only stage=dapt to an entry; --NAME VALUE sets a name of
`let`, --section.field VALUE a field of every stage. `plan --config FILE [--section.field VALUE ...]` looks at the one
job of jobs/dapt.py.
"""

import sys

from adapt.chain import Store, plan
from adapt.console import finish, run_job
from adapt.errors import AdaptError
from adapt.parse import parse
from adapt.recipe.arguments import Command, read_command
from adapt.recipe.build import Chain, ahead, build, study, trainings_ahead
from adapt.recipe.expand import expand
from adapt.recipe.file import Recipe, read_recipe
from adapt.stages import Catalogue, run_stages
from adapt.summary import show_forecast, show_plan
from adapt.summary.chain import show_ahead, show_goals, show_trainings, show_verdict


def main() -> None:
    """Reads the chain, and does what the command says."""
    if sys.argv[1:2] == ["plan"] and sys.argv[2:3] and sys.argv[2].startswith("--"):
        plan_one()
        return
    command = read_command(sys.argv[1:])
    recipe = read_recipe(command.file, command.let, command.common)
    chain = build(expand(recipe, command.only))
    {"run": run, "plan": plan_all, "status": status, "report": report}[command.verb](command, recipe, chain)


def run(command: Command, recipe: Recipe, chain: Chain) -> None:
    show_ahead(ahead(chain))
    whole = build(expand(recipe)) if command.only else chain  # the report is of all that is finished, not of a part
    try:
        run_stages([goal.stage for goal in chain.goals], chain.store, chain.resources)
    except AdaptError:
        report(command, recipe, whole)
        raise
    report(command, recipe, whole)


def plan_all(command: Command, recipe: Recipe, chain: Chain) -> None:
    show_goals(chain.goals, chain.store)
    show_trainings(trainings_ahead(chain))
    counts = ahead(chain)
    show_ahead(counts)
    finish("plan", chain.store.root, {"to_run": sum(counts.values()), **counts})


def status(command: Command, recipe: Recipe, chain: Chain) -> None:
    counts = show_goals(chain.goals, chain.store)
    finish("status", chain.store.root, counts)


def report(command: Command, recipe: Recipe, chain: Chain) -> None:
    from adapt.report.write import write_report

    found = study(recipe.name, recipe.baseline, chain)
    page = write_report(found, chain.store.root / "reports" / recipe.name)
    show_verdict(page)
    finish("report", page, {"finished": len(found.entries), "missing": len(found.missing)})


def plan_one() -> None:
    """The plan of a single DAPT job: its stages, and what the training will take."""
    catalogue = Catalogue(parse(sys.argv[2:], "jobs/chain.py plan"))
    store = Store(catalogue.root)
    planned = plan(catalogue.dapt(), store)
    show_plan(planned)
    if forecast := catalogue.ahead(planned, store):
        show_forecast(forecast.lines())
    finish("plan", catalogue.root, {"done": sum(p.record is not None for p in planned), "stages": len(planned)})


if __name__ == "__main__":
    run_job(main)
