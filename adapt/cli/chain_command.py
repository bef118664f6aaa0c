"""Implements `dontstop chain`, with run, plan, status, logs and report; on a cluster also submit, follow and stop."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from adapt.chain import chain_file, chain_stages
from adapt.chain.chain_run import ChainRun, Report, ahead_lines, progress_of
from adapt.job.job_run import plan_of
from adapt.parse import parse
from adapt.runner.stage import everything
from adapt.show.progress.chain_now import ChainNow
from adapt.show.progress.goals import show_logs
from adapt.show.renderers import show_blocks
from adapt.show.report.study import Study
from adapt.stage.context import Context
from adapt.submit.submit_order import VERBS, ClusterCommand, chain_of, order_of, read_cluster_command
from adapt.support.errors import ConfigError
from adapt.terminal.console import end_with_terminal, finish, is_unread, log

FOLLOW_S = 10.0
"""Seconds between two updates of `status --follow`."""
HELP = """\
A chain runs several jobs from one file.

On this machine:
  dontstop chain run FILE            Runs the stages that are not finished, several at once if there is room, and
                                     writes the report.
  dontstop chain plan FILE           Shows what would run, with a forecast of time and cost. Nothing runs.
  dontstop chain status FILE         Shows which stages are finished, running or waiting, and why they wait.
                                     --follow repeats it every 10 seconds.
  dontstop chain logs FILE [STAGE]   Shows the log of a stage. STAGE is a label from the status, a kind, or a folder.
  dontstop chain report FILE         Writes the report of the finished stages.
  dontstop chain report --serve FILE Serves the report as a web page and updates it while the chain runs. --port N

FILE is a chain file or the name of a recipe (see dontstop recipes).
  --NAME VALUE                 sets a variable in the file's section `let`
  --section.field VALUE        sets a field of every stage
  --only task=acl_arc,scierc   runs only these members of a set, with the stages that they need
  --only stage=dapt            runs only this entry of `stages`, with the stages that it needs

For a single job:
  dontstop chain plan [--job NAME] --config FILE [--section.field VALUE ...]
                                     Shows what the job would run. The default job is dapt.

On a cluster, with --address URL (the address of its dashboard). Without --address, submit and stop use the address in
RAY_API_SERVER_ADDRESS, but status and logs read storage.root on this machine:
  dontstop chain submit FILE         Checks the chain, submits it and shows its progress. If you run the command
                                     again, it shows the progress of the submitted chain.
                                     --job-per-stage submits each stage as a Ray job. --retries N restarts a lost job
                                     up to N times. --again also restarts finished work.
  dontstop chain submit --job NAME --config FILE   Submits a single job.
  dontstop chain status FILE --address URL         Shows the status of the chain on the cluster.
  dontstop chain logs FILE [STAGE] --address URL   Shows the log of the chain, or of a stage, on the cluster.
  dontstop chain stop FILE           Stops the chain. The results of finished stages are kept.
  dontstop chain check FILE          Checks that the node on which you run it can use the storage, files, models and
                                     resources."""


def main(arguments: Sequence[str]) -> None:
    """Runs a command line of `dontstop chain`.

    Args:
        arguments: the verb, followed by the arguments of the verb.

    Raises:
        AdaptError: the command fails.
    """
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(HELP)
    elif arguments[0] == "plan" and arguments[1:2] and arguments[1].startswith("--"):
        plan_one(arguments[1:])
    elif arguments[0] in (*VERBS, "status", "logs") or (arguments[0] == "report" and "--serve" in arguments):
        on_cluster(arguments)
    else:
        command = chain_file.read_command(arguments)
        chain = ChainRun.of(command.file, command.let, command.common, command.only)
        if command.verb == "report":
            show_report(chain.report())
        else:
            (_run if command.verb == "run" else _plan)(chain)


def _run(chain: ChainRun) -> None:
    """Runs a chain and writes the chain's report."""
    plan = chain.plan()
    for line in ahead_lines(plan.to_run, len(plan.later)):
        log(line)
    show_report(chain.run())


def _plan(chain: ChainRun) -> None:
    """Shows the stages that a chain would run."""
    plan = chain.plan()
    show_blocks(plan.blocks())
    later = {"later": len(plan.later)} if plan.later else {}
    finish("plan", chain.build().store.root, {"to_run": sum(plan.to_run.values()), **plan.to_run, **later})


def show_report(report: Report) -> None:
    """Shows the verdict of a report and the path of the report's page."""
    show_blocks(report.first_blocks())
    finish("report", report.path, {"finished": len(report.study.entries), "missing": len(report.study.missing)})


def plan_one(arguments: Sequence[str]) -> None:
    """Shows the stages that a single job would run, with a forecast of its training runs."""
    job, rest = chain_file.read_job(arguments)
    context = Context.of(parse(rest, f"dontstop {job.name}", job.kind), kind=job.kind)
    made = plan_of(job, context)
    log(f"This is what `dontstop {job.name}` would run. --job NAME plans another job.")
    show_blocks(made.blocks())
    finish("plan", context.store.root, {"done": len(made.stages) - len(made.to_run), "stages": len(made.stages)})


def on_cluster(arguments: Sequence[str]) -> None:
    """Runs the verbs that submit work to a cluster or control it there, and the verbs status, logs and report."""
    asked = read_cluster_command(arguments)
    if asked.verb == "report":
        _serve(asked)
        return
    if asked.verb in VERBS or asked.address:
        from adapt.submit.submission import run_cluster_command  # imported here, because it loads Ray

        run_cluster_command(asked)
        return
    order = order_of(asked.rest)
    if asked.verb == "status":
        _status(lambda: chain_of(order), "follow" in asked.switches)
    else:
        chain = chain_of(order)
        chain.store.follow(everything(goal.stage for goal in chain.goals))
        finish("logs", chain.store.root, {"lines": show_logs(chain.goals, chain.store, asked.stage)})


def _status(built: Callable[[], chain_stages.Chain], follows: bool) -> None:
    """Shows the status of a chain once, or every FOLLOW_S seconds.

    The chain is built again each time, because a finished search adds the stages that use its best values.
    """
    while True:
        chain = built()
        now = progress_of(chain)
        show_blocks(now.blocks())
        if not follows or is_unread() or (now.counts["finished"] == len(chain.goals) and not chain.later):
            break
        time.sleep(FOLLOW_S)
    finish("status", chain.store.root, {**now.counts, **now.spent})


def _serve(asked: ClusterCommand) -> None:
    """Serves the report as a page that shows the chain's progress, until ctrl-C or the end of the terminal."""
    from adapt.show.report.served_page import FollowedPage, serving

    if asked.address:
        raise ConfigError(
            "dontstop chain report --serve reads storage.root on this machine and cannot use the cluster at --address",
            "leave --address out, and run the command on a machine with access to storage.root, such as the cluster's"
            " head node (docs/guide/clusters.md)",
        )
    end_with_terminal()
    order = order_of(asked.rest)
    chains = [chain_of(order)]

    def look() -> tuple[Study, ChainNow]:
        # the chain must be built again, because a finished search or look adds stages
        if chains[-1].later or chains[-1].sequential:
            chains[:] = [chain_of(order)]
        now = progress_of(chains[-1])
        return chain_stages.study(order.name, order.baseline, chains[-1], order.margin), now

    page = FollowedPage(order.name, look)
    with serving(page.html, asked.port) as address, suppress(KeyboardInterrupt):
        log(f"The report is at {address} and is updated while the chain runs. Ctrl-C stops this server, not the chain.")
        threading.Event().wait()
    finish("report", address, look()[1].counts)
