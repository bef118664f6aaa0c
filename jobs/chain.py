"""Runs a chain of stages from one file, or shows what it would do.

python jobs/chain.py run FILE      runs what is not finished, side by side as far as there is room; writes the report
python jobs/chain.py plan FILE     shows what would run, and what it will take
python jobs/chain.py status FILE   shows what is finished, running and waiting, and why; --follow: again and again
python jobs/chain.py logs FILE STAGE   shows what a stage has said: its label, as in status, its kind, or its folder
python jobs/chain.py report FILE   writes the report of what is finished
python jobs/chain.py report --serve FILE   the same as a page on this machine that follows the chain; --port N

--only task=acl_arc,scierc keeps to some members of a set, --only stage=dapt to one entry of `stages`, each with the
stages that it needs. --NAME VALUE sets a name of `let`; --section.field VALUE sets a field of every stage.

python jobs/chain.py plan [--job NAME] --config FILE [--section.field VALUE ...]
                                   shows what a single job would run: jobs/NAME.py, or jobs/dapt.py if none is named

On a cluster (docs/cluster.md), --address URL being its dashboard's, or RAY_API_SERVER_ADDRESS:

python jobs/chain.py submit FILE   checks, submits and follows; a second time it goes on following. --job-per-stage,
                                   --retries N, --again; `submit --job NAME --config FILE` submits a single job
python jobs/chain.py status FILE --address URL, logs FILE [STAGE] --address URL, stop FILE
python jobs/chain.py check FILE    on a cluster's node: whether storage, files, models and resources will do
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from adapt.chain.arguments import Command, read_command, read_job
from adapt.chain.build import Chain, ahead, build_chain, build_one, study, trainings_ahead
from adapt.chain.expand import expand_chain
from adapt.chain.file import ChainFile, read_chain
from adapt.console import finish, log, run_job
from adapt.errors import AdaptError, ConfigError
from adapt.parse import parse
from adapt.report.entry import Study
from adapt.runner import plan
from adapt.stage.running import run_stages
from adapt.stage.train import Train
from adapt.streams import end_with_terminal, is_unread
from adapt.summary.chain import show_ahead, show_goals, show_trainings, show_verdict
from adapt.summary.logs import show_logs
from adapt.summary.now import ChainNow, chain_now
from adapt.summary.planned import show_forecast, show_plan
from adapt.summary.running import show_running
from adapt.summary.tuned import show_ahead_of_search
from adapt.summary.waiting import show_spent, show_waiting, spent
from adapt.tuning.ahead import SearchAhead, check_search
from cluster.arguments import VERBS, Asked, read_asked

FOLLOW_S = 10.0
"""Between two looks of `status --follow`."""


def main() -> None:
    """Reads the chain, and does what the command says."""
    if sys.argv[1:2] == ["plan"] and sys.argv[2:3] and sys.argv[2].startswith("--"):
        plan_one()
        return
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    looks = sys.argv[1:2] and sys.argv[1] in (*VERBS, "status", "logs")
    if looks or (sys.argv[1:2] == ["report"] and "--serve" in sys.argv):
        on_cluster(sys.argv[1:])
        return
    command = read_command(sys.argv[1:])
    chain_file = read_chain(command.file, command.let, command.common)
    chain = build_chain(expand_chain(chain_file, command.only))
    {"run": run, "plan": plan_all, "report": report}[command.verb](command, chain_file, chain)


def run(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    check_searches(chain)
    try:
        chain = finished(command, chain_file, chain)
    except AdaptError:
        report(command, chain_file, build_chain(expand_chain(chain_file)))
        raise
    # the report is of all that is finished, not of a part
    report(command, chain_file, build_chain(expand_chain(chain_file)) if command.only else chain)


def check_searches(chain: Chain) -> None:
    for search in chain.searches:
        check_search(search, chain.store)


def finished(command: Command, chain_file: ChainFile, chain: Chain) -> Chain:
    """Runs a chain. What takes the best values of a search is known, and runs, when the search has finished."""
    while True:
        show_ahead(ahead(chain), len(chain.later))
        run_stages([goal.stage for goal in chain.goals], chain.store, chain.resources)
        if not chain.later:
            return chain
        chain = build_chain(expand_chain(chain_file, command.only))
        check_searches(chain)


def plan_all(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    show_goals(chain.goals, chain.store)
    for search in chain.searches:
        trials = SearchAhead.of(search, chain.store)
        show_ahead_of_search(trials.rows(), trials.total(), search.name)
    show_trainings(trainings_ahead(chain))
    counts, later = ahead(chain), len(chain.later)
    show_ahead(counts, later)
    finish("plan", chain.store.root, {"to_run": sum(counts.values()), **counts, **({"later": later} if later else {})})


def on_cluster(arguments: list[str]) -> None:
    """What concerns a cluster, or looks at what runs there or here."""
    from cluster.commands import carry_out_there, chain_of
    from cluster.order import order_of

    asked = read_asked(arguments)
    if asked.verb in ("report", "status", "logs"):
        end_with_terminal()
    if asked.verb == "report":
        serve(asked)
        return
    if asked.verb in VERBS or asked.address:
        carry_out_there(asked)
        return
    order = order_of(asked.rest)
    if asked.verb == "status":
        status(lambda: chain_of(order), "follow" in asked.switches)
    else:
        chain = chain_of(order)
        finish("logs", chain.store.root, {"lines": show_logs(chain.goals, chain.store, asked.stage)})


def status(found: Callable[[], Chain], follows: bool) -> None:
    """Looks once, or again and again: a search that has finished makes known what takes its best values."""
    while True:
        chain = found()
        stages = [goal.stage for goal in chain.goals]
        counts = show_goals(chain.goals, chain.store)
        show_waiting(chain.goals, chain.store)
        show_running(stages, chain.store)
        if chain.later:
            log(f"{len(chain.later)} of the chain's stages follow when its searches have finished")
        taken = spent(stages, chain.store)
        show_spent(taken, trainings_ahead(chain))
        if chain.later:
            log(f"{len(chain.later)} more follow when the searches are finished")
        if not follows or is_unread() or (counts["finished"] == len(stages) and not chain.later):
            break
        time.sleep(FOLLOW_S)
    finish("status", chain.store.root, {**counts, **taken})


def report(command: Command, chain_file: ChainFile, chain: Chain) -> None:
    from adapt.report.write import write_report

    found = study(chain_file.name, chain_file.baseline, chain)
    page = write_report(found, chain.store.root / "reports" / chain_file.name)
    show_verdict(page)
    finish("report", page, {"finished": len(found.entries), "missing": len(found.missing)})


def serve(asked: Asked) -> None:
    """The report as a page that follows the chain, until ctrl-c."""
    from adapt.report.serving.page import FollowedPage
    from adapt.report.serving.server import serving
    from cluster.commands import chain_of
    from cluster.order import order_of

    if asked.address:
        raise ConfigError(
            "report --serve reads results where it runs, and asks no cluster",
            "leave --address out; run it where storage.root is visible, such as on the head (docs/cluster.md)",
        )
    order = order_of(asked.rest)
    chains = [chain_of(order)]

    def look() -> tuple[Study, ChainNow]:
        if chains[-1].later:  # a search that has finished makes known what takes its best values
            chains[:] = [chain_of(order)]
        chain = chains[-1]
        now = chain_now(chain.goals, chain.store, trainings_ahead(chain), chain.later)
        return study(order.name, order.baseline, chain), now

    page = FollowedPage(order.name, look)
    with serving(page.html, asked.port) as address, suppress(KeyboardInterrupt):
        log(f"the report follows the chain at {address} (ctrl-c ends the page, not the chain)")
        threading.Event().wait()
    finish("report", address, look()[1].counts)


def plan_one() -> None:
    """The plan of a single job: its stages, and what its trainings will take."""
    job, arguments = read_job(sys.argv[2:])
    chain = build_one(job, parse(arguments, "jobs/chain.py plan", job.kind))
    (goal,), store = chain.goals, chain.store
    planned = plan(goal.stage, store)
    log(f"as jobs/{job.name}.py would run it (--job: another)")
    show_plan(planned)
    records = {line.stage.key: line.record for line in planned if line.record}
    waiting = [line.stage for line in planned if isinstance(line.stage, Train) and not line.record]
    if len(waiting) > 1:
        show_trainings(trainings_ahead(chain))
    elif waiting and (forecast := waiting[0].forecast(records)):
        show_forecast(forecast.lines())
    finish("plan", store.root, {"done": len(records), "stages": len(planned)})


if __name__ == "__main__":
    run_job(main)
