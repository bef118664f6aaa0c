"""Runs a chain of stages from one file, or looks at it.

python jobs/chain.py run FILE      what is not finished, side by side as far as there is room; then the report
python jobs/chain.py plan FILE     what would run, and what it will take
python jobs/chain.py status FILE   what is finished, running and waiting
python jobs/chain.py report FILE   the report of what is finished

--only task=acl_arc,scierc keeps to some members of a set, --only stage=dapt to an entry; --NAME VALUE sets a name of
`let`, --section.field VALUE a field of every stage. `plan [--job das] --config FILE [--section.field VALUE ...]` looks
at a single job, of jobs/dapt.py where none is named.
"""

import sys

from adapt.chain.arguments import Command, read_command, read_job
from adapt.chain.build import Chain, Goal, ahead, build, last_stage, study, trainings_ahead
from adapt.chain.expand import expand
from adapt.chain.file import ChainFile, read_chain
from adapt.config.kinds import KINDS
from adapt.console import finish, log, run_job
from adapt.errors import AdaptError
from adapt.parse import parse
from adapt.runner import Store, plan
from adapt.stages import Catalogue, run_stages
from adapt.summary import show_forecast, show_plan
from adapt.summary.chain import show_ahead, show_goals, show_trainings, show_verdict


def main() -> None:
    """Reads the chain, and does what the command says."""
    if sys.argv[1:2] == ["plan"] and sys.argv[2:3] and sys.argv[2].startswith("--"):
        plan_one()
        return
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    command = read_command(sys.argv[1:])
    chain_file = read_chain(command.file, command.let, command.common)
    chain = build(expand(chain_file, command.only))
    {"run": run, "plan": plan_all, "status": status, "report": report}[command.verb](command, chain_file, chain)


def run(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    show_ahead(ahead(chain))
    whole = build(expand(chain_file)) if command.only else chain  # the report is of all that is finished, not of a part
    try:
        run_stages([goal.stage for goal in chain.goals], chain.store, chain.resources)
    except AdaptError:
        report(command, chain_file, whole)
        raise
    report(command, chain_file, whole)


def plan_all(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    show_goals(chain.goals, chain.store)
    show_trainings(trainings_ahead(chain))
    counts = ahead(chain)
    show_ahead(counts)
    finish("plan", chain.store.root, {"to_run": sum(counts.values()), **counts})


def status(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    counts = show_goals(chain.goals, chain.store)
    finish("status", chain.store.root, counts)


def report(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    from adapt.report.write import write_report

    found = study(chain_file.name, chain_file.baseline, chain)
    page = write_report(found, chain.store.root / "reports" / chain_file.name)
    show_verdict(page)
    finish("report", page, {"finished": len(found.entries), "missing": len(found.missing)})


def plan_one() -> None:
    """The plan of a single job: its stages, and what the training will take."""
    job, arguments = read_job(sys.argv[2:])
    catalogue = Catalogue(parse(arguments, "jobs/chain.py plan", KINDS[job]))
    goal = Goal(job, job, {}, last_stage(catalogue, job), catalogue)
    chain = Chain([goal], Store(catalogue.root), catalogue.config.resources)
    planned = plan(goal.stage, chain.store)
    log(f"as jobs/{job}.py would run it (--job: another)")
    show_plan(planned)
    if goal.stage.stage != "export":
        show_trainings(trainings_ahead(chain))
    elif forecast := catalogue.ahead(planned, chain.store):
        show_forecast(forecast.lines())
    finish("plan", catalogue.root, {"done": sum(p.record is not None for p in planned), "stages": len(planned)})


if __name__ == "__main__":
    run_job(main)
