"""Implements `make faults` and `make chaos`, which disturb a chain of six stages in many ways."""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from functools import cached_property
from pathlib import Path
from random import Random

import psutil

from benchmarks.stall import has_namespaces
from tests.chaos.cluster_field import MOST, Field, field_of
from tests.chaos.failing_store import VARIABLE as STORE
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.jumping_clock import VARIABLE as CLOCK
from tests.chaos.moment import Scene, Undisturbed, place_in, run_undisturbed, try_at
from tests.chaos.outcome import Outcome, Results, table
from tests.chaos.work import Chain, Place, Run
from tests.forks.process import IMPORT

DISK_MB = 48
"""Size of the small disk that one of the faults fills [MB]."""


class Trials:
    """Runs the chain with one fault per trial. All trials share the chain, the cluster and the undisturbed runs.

    Args:
        folder: folder for all files.
        seed: seed of all random choices.
        stack: exit stack to which the cluster is added, so that the cluster is stopped at the end.
        said: folder for the messages of chains in which something went wrong.
    """

    def __init__(self, folder: Path, seed: int, stack: ExitStack, said: Path | None) -> None:
        self._folder, self._seed, self._stack, self._said = folder, seed, stack, said
        self._chain = Chain.made(folder)

    @cached_property
    def _field(self) -> Field:
        home = self._folder / "cluster"
        home.mkdir()
        return self._stack.enter_context(field_of(home))

    @cached_property
    def _alone(self) -> Undisturbed:
        with place_in(self._folder / "alone") as place:
            return run_undisturbed(place, lambda: place.start(self._chain.file))

    @cached_property
    def _together(self) -> Undisturbed:
        self._field.set_number(1)
        with place_in(self._folder / "together") as place:
            return run_undisturbed(place, lambda: place.start_on(self._field.cluster, self._chain.file))

    def outcome_of(self, name: str, moment: int) -> Outcome:
        """Runs the chain with the fault of this name, and returns what happened."""
        fault, outcome = FAULTS[name], Outcome(name, moment, day=date.today().isoformat())
        if why := self._missing(fault):
            outcome.left_out = why
            return outcome
        draw = Random(f"{self._seed} {name} {moment}")
        is_on_cluster = fault.where in ("joined", "submitted")
        undisturbed = self._together if is_on_cluster else self._alone
        with self._place(fault, self._folder / f"{name}-{moment}") as place:
            start = self._start(fault, place, draw)
            field = None
            if is_on_cluster:
                field = self._field
                field.set_number(draw.randint(1, MOST))
                outcome.nodes = str(len(field.nodes))
            scene = Scene(self._chain, place, draw, start, start(), outcome, field)
            try:
                try_at(fault.happen, scene, undisturbed)
            except Exception as error:  # the error is recorded and not raised, so that the other faults are still tried
                outcome.wrong.append(f"{type(error).__name__}: {error}")
            finally:
                for process in (*scene.run.below(), *scene.seen.values()):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()  # processes still run if the chain hangs
            if outcome.wrong and self._said:
                self._said.mkdir(parents=True, exist_ok=True)
                (self._said / f"{name}-{moment}").write_text("\n=====\n".join([*scene.said, scene.run.said()]))
            if field:
                outcome.nodes += f" → {len(field.nodes)}"
        return outcome

    def _missing(self, fault: Fault) -> str:
        if fault.where == "apart" and not has_namespaces():
            return "no network namespace can be made here"
        if fault.where == "disk" and not _may_mount():
            return "no file system can be mounted here"
        return ""

    @contextmanager
    def _place(self, fault: Fault, folder: Path) -> Iterator[Place]:
        folder.mkdir()
        with ExitStack() as stack:
            root = folder / "runs"
            if fault.where == "disk":
                root = stack.enter_context(_small_disk(folder / "disk")) / "runs"
            place = stack.enter_context(place_in(folder, root))
            place.environment |= {STORE: f"{folder}/fails", CLOCK: f"{folder}/clock"}
            place.environment[IMPORT] = "tests.chaos.failing_store,tests.chaos.jumping_clock"
            yield place

    def _start(self, fault: Fault, place: Place, draw: Random) -> Callable[[], Run]:
        file = self._chain.file
        match fault.where:
            case "apart":
                return lambda: place.start_apart(file)
            case "joined":
                by_node = draw.random() < 0.5

                def start() -> Run:
                    nodes = self._field.nodes
                    return place.start_on(self._field.cluster, file, nodes[0].host if by_node and nodes else None)

                return start
            case "submitted":
                return lambda: place.submit_to(self._field.cluster, self._chain)
            case _:
                return lambda: place.start(file)


def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        if subprocess.run(command, capture_output=True).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def main() -> int:
    """Tries all faults, and prints the table of all results in the file. With --minutes 0, it only prints the table.

    Returns 1 if something went wrong, or if a fault was not tried despite the option --all.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--moments", type=int, default=1, help="number of random moments of each fault")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and of all other random choices")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"some of {', '.join(FAULTS)}")
    parser.add_argument("--file", type=Path, help="file of results; further calls, also on other machines, add to it")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time after which no fault is begun")
    parser.add_argument("--said", type=Path, help="folder for the messages of chains that went wrong")
    parser.add_argument("--all", action="store_true", help="fail if a fault was left out or not begun")
    given = parser.parse_args()
    names = given.faults.split(",")
    if unknown := set(names) - FAULTS.keys():
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    # SIGTERM raises SystemExit, so that the cluster is stopped
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results, began = Results(given.file), time.monotonic()
    about = {name: FAULTS[name].about for name in names}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, ExitStack() as stack:
        trials = Trials(Path(folder), given.seed, stack, given.said)
        for moment in range(given.moments):
            for name in names:
                if results.has(name, moment):
                    continue
                if time.monotonic() - began > 60 * given.minutes:
                    break
                outcome = trials.outcome_of(name, moment)
                results.add(outcome)
                print(_line(outcome, time.monotonic() - began), file=sys.stderr, flush=True)
    print(table(results.outcomes, about, date.today()), flush=True)
    untried = results.untried(names, given.moments) if given.all else []
    if untried:
        print(f"not tried: {', '.join(untried)}", file=sys.stderr)
    return int(bool(untried) or any(outcome.wrong for outcome in results.outcomes))


def _line(outcome: Outcome, seconds: float) -> str:
    ended = outcome.left_out or "; ".join(outcome.wrong) or "intact"
    recovered = f"recovered in {outcome.recovered_s:.0f} s, {outcome.redone_steps} steps redone"
    where = f", {outcome.nodes} nodes" if outcome.nodes else ""
    return f"{seconds:5.0f} s  {outcome.fault} {outcome.moment} at {outcome.at}{where}: {recovered}: {ended}"


if __name__ == "__main__":
    sys.exit(main())
