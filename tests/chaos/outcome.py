"""Records what happened after each injected fault, stores the results in a file, and formats them as a table."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path


@dataclass
class Outcome:
    """The result of one fault at one random moment."""

    fault: str
    moment: int
    """Number of the trial of this fault, counted from 0."""
    at: str = ""
    """State of the chain when the fault happened, such as `train, step 23`."""
    nodes: str = ""
    """Numbers of nodes before and after the fault. Empty on one machine."""
    commands: int = 1
    """Number of starts of the command, up to and including the start that succeeded."""
    recovered_s: float = 0.0
    """Time from the fault to the first new progress, which is a new step or a finished stage [s].

    The time includes the duration of the fault, and the start of a new command.
    """
    redone_steps: int = 0
    """Number of training steps that were computed twice."""
    redone_stages: list[str] = field(default_factory=list)
    """Finished stages that ran again although their files were intact. None are allowed."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of everything that went wrong. Empty if the fault did no harm."""
    left_out: str = ""
    """Reason why the fault could not be tried on this machine."""
    day: str = ""
    """Date of the trial (ISO). Empty in old files."""


class Results:
    """Stores outcomes as JSON lines in a file, so that a killed command can continue.

    Args:
        file: path of the file. If None, the outcomes are only kept in memory.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file and file.exists() else []
        whole = [line for line in lines if line.endswith("}")]  # the last line may be incomplete
        self.outcomes = [Outcome(**json.loads(line)) for line in whole]

    def has(self, fault: str, moment: int) -> bool:
        """Returns whether this trial of the fault was made. A fault that was left out may be possible elsewhere."""
        return any((each.fault, each.moment) == (fault, moment) and not each.left_out for each in self.outcomes)

    def untried(self, faults: Iterable[str], moments: int) -> list[str]:
        """Returns the faults that were left out or not begun at one of the moments, counted from 0."""
        tried = {(each.fault, each.moment) for each in self.outcomes if not each.left_out}
        return [fault for fault in faults if any((fault, moment) not in tried for moment in range(moments))]

    def add(self, outcome: Outcome) -> None:
        """Adds an outcome to the list, and to the file if there is one."""
        self.outcomes.append(outcome)
        if self._file:
            with self._file.open("a") as file:
                file.write("\n" + json.dumps(asdict(outcome)) + "\n")


def table(outcomes: Iterable[Outcome], about: dict[str, str], day: date) -> str:
    """Returns the dated table of all faults as Markdown.

    Args:
        outcomes: outcomes of all trials.
        about: description of each fault, in the order of the rows.
        day: date in the title, if the outcomes have no dates.
    """
    outcomes = list(outcomes)
    by_fault = {name: [each for each in outcomes if each.fault == name] for name in about}
    tried = [each for each in outcomes if not each.left_out]
    intact = sum(not each.wrong for each in tried)
    days = sorted({each.day for each in tried if each.day}) or [day.isoformat()]
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [
        f"Faults, {span}: {intact} of {len(tried)} chains ended as undisturbed.",
        "",
        "|fault|moments|intact|recovered in [s], median (longest)|steps redone, median (most)|commands, most|",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(about[name], found) for name, found in by_fault.items()]
    problems = [_problem(each) for each in tried if each.wrong]
    return "\n".join([*lines, *(["", "What went wrong:", "", *problems] if problems else [])])


def _problem(outcome: Outcome) -> str:
    return f"- {outcome.fault}, moment {outcome.moment} ({outcome.at}): {'; '.join(outcome.wrong)}"


def _row(about: str, found: Sequence[Outcome]) -> str:
    tried = [each for each in found if not each.left_out]
    if not tried:
        return f"|{about}|0|{found[0].left_out if found else 'not tried'}||||"
    seconds, steps = [each.recovered_s for each in tried], [each.redone_steps for each in tried]
    intact = sum(not each.wrong for each in tried)
    middle = f"{statistics.median(seconds):.0f} ({max(seconds):.0f})", f"{statistics.median(steps):g} ({max(steps)})"
    return f"|{about}|{len(tried)}|{intact}|{middle[0]}|{middle[1]}|{max(each.commands for each in tried)}|"
