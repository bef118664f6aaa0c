"""Shows the goals of a chain (the stages that it must finish): their states, reasons for waiting, cost and logs."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from adapt.runner.claim import is_claimed
from adapt.runner.stage import Stage, everything
from adapt.runner.store import Store, failure_of, logged_lines
from adapt.show.blocks import Table
from adapt.support.errors import ConfigError, nearest
from adapt.terminal.console import duration, is_unread, logs_json, printable

START = "start.training"
"""Name of the input that is the training stage of another entry (see `adapt.model.start.Start`)."""
STATES = ("finished", "running", "waiting")
ENTRY_COLUMNS = ("entry of the chain file", *STATES, "not finished")


class TrainingAhead(NamedTuple):
    """A training stage that will run, with its forecast. Numbers are None if the stage's text is not prepared yet."""

    label: str
    tokens: int | None = None
    device_hours: float | None = None
    cost: float | None = None


class ShownGoal(Protocol):
    """A stage that a chain must finish (see `adapt.chain.chain_stages.Goal`)."""

    @property
    def name(self) -> str:
        """Name of the goal's entry in the chain file."""

    @property
    def label(self) -> str:
        """Name of the goal's entry and the members of the swept sets, such as `finetune[DAPT, acl_arc, 3]`."""

    @property
    def stage(self) -> Stage[Any]:
        """The stage that must be finished."""


def goals_table(goals: Sequence[ShownGoal], store: Store) -> Table:
    """Makes a table with a row per entry of the chain file: how many of its goals are finished, running or waiting."""
    return Table(ENTRY_COLUMNS, [entry_row(name, of) for name, of in states_by_entry(goals, store).items()], words=True)


def goal_states(goals: Sequence[ShownGoal], store: Store) -> dict[str, int]:
    """Returns the number of goals that are finished, running and waiting, keyed by the state."""
    states = states_by_entry(goals, store)
    return {state: sum(len(members[state]) for members in states.values()) for state in STATES}


def states_by_entry(goals: Sequence[ShownGoal], store: Store) -> dict[str, dict[str, list[str]]]:
    """Lists the goals of each entry of the chain file, by state: finished, running or waiting.

    A goal is listed by the part of its label after the entry's name, such as `DAPT, acl_arc, 3`.
    """
    states: dict[str, dict[str, list[str]]] = {}
    for goal in goals:
        members = states.setdefault(goal.name, {state: [] for state in STATES})
        members[_state(goal.stage, store)].append(goal.label.removeprefix(goal.name).strip("[]"))
    return states


def entry_row(name: str, members: Mapping[str, Sequence[str]]) -> list[str]:
    """Formats the cells of an entry's row for the columns ENTRY_COLUMNS."""
    left = [*members["running"], *members["waiting"]]
    more = f" and {len(left) - 4} more" if len(left) > 4 else ""
    return [name, *(str(len(members[state])) for state in STATES), "; ".join(left[:4]) + more]


def _state(stage: Stage[Any], store: Store) -> str:
    if store.record_of(stage):
        return "finished"
    running = is_claimed(store.folder_of(stage)) or _works_for(stage, store)
    return "running" if running else "waiting"


def _works_for(stage: Stage[Any], store: Store) -> bool:
    """Returns whether a process works on a stage that the given stage depends on.

    A training stage of another entry does not count, even if the given stage starts from that stage's model.
    """
    return any(
        is_claimed(store.folder_of(needed)) or _works_for(needed, store)
        for name, needed in stage.inputs.items()
        if name != START and not store.record_of(needed)
    )


def trainings_table(trainings: Sequence[TrainingAhead]) -> Table | None:
    """Makes a table with a row per training stage that will run. If all numbers are known, the last row is the sum."""
    if not trainings:
        return None
    columns = list(zip(*trainings, strict=True))[1:]
    sums = (None if None in column else sum(column) for column in columns)
    rows = [
        [str(label), _figure(tokens, ","), device_hours(hours), _figure(cost, ",.2f")]
        for label, tokens, hours, cost in (*trainings, ("all", *sums))
    ]
    note = (
        "? means not known. Tokens and device-hours are known once the text is prepared; the cost also needs"
        " resources.price_per_device_hour."
    )
    return Table(["training", "tokens", "device-hours", "cost"], rows, "Trainings that will run", note)


def device_hours(hours: Any) -> str:
    """Formats device-hours as `1.25` or `less than 0.001`. None becomes a question mark."""
    return "less than 0.001" if hours is not None and 0 < hours < 0.001 else _figure(hours, ".3g")


def _figure(value: Any, form: str) -> str:
    return "?" if value is None else format(value, form)


NAMED = 10
"""Maximum number of reasons for waiting that are listed."""


def reasons_of(goals: Sequence[ShownGoal], store: Store) -> list[tuple[str, str]]:
    """Lists at most NAMED reasons why goals wait.

    Each reason comes with the label of the first goal that waits for it, such as `finetune[DAPT, acl_arc, 3] and 4
    more`.
    """
    reasons: dict[str, list[str]] = {}
    for goal in goals:
        if reason := why_waiting(goal.stage, store):
            reasons.setdefault(reason, []).append(goal.label)
    more = {reason: f" and {len(labels) - 1} more" if len(labels) > 1 else "" for reason, labels in reasons.items()}
    return [(f"{labels[0]}{more[reason]}", reason) for reason, labels in list(reasons.items())[:NAMED]]


def why_waiting(stage: Stage[Any], store: Store) -> str:
    """Describes what a stage waits for. The text is empty if the stage is finished or running."""
    folder = store.folder_of(stage)
    if store.record_of(stage) or is_claimed(folder):
        return ""
    first = next(_unmade(stage, store), None)
    if first is None:
        failure = failure_of(folder)
        return f"failed: {failure}" if failure else "ready: waits for free resources, or for `dontstop chain run`"
    place, what = store.folder_of(first), f"{first.kind} {first.name}"
    if is_claimed(place):
        return f"waits for {what}, which is running"
    failure = failure_of(place)
    return f"waits for {what}, which failed: {failure}" if failure else f"waits for {what}, which has not started"


def _unmade(stage: Stage[Any], store: Store) -> Iterator[Stage[Any]]:
    """Yields the unfinished stages that a stage depends on, in the order in which they can run."""
    for needed in stage.needed:
        if not store.record_of(needed):
            yield from _unmade(needed, store)
            yield needed


def spent(stages: Iterable[Stage[Any]], store: Store) -> dict[str, float]:
    """Sums the cost of all finished stages among `stages` and their inputs at any depth.

    Some records repeat the device time of the stage's inputs, such as records of exports. From these, only the seconds
    are added.

    Returns:
        `seconds` of work, `device_hours`, and `cost` in the currency of `resources.price_per_device_hour`.
    """
    total = {"seconds": 0.0, "device_hours": 0.0, "cost": 0.0}
    for stage in everything(stages):
        if record := store.record_of(stage):
            for name in total if stage.device_time != "inputs" else ("seconds",):
                total[name] += record.cost.get(name) or 0.0
    return {name: round(value, 6) for name, value in total.items()}


def spent_lines(taken: dict[str, float], ahead: Sequence[TrainingAhead]) -> list[str]:
    """Describes the cost so far, as returned by `spent`, and the device-hours of the training still to run."""
    money = f" (cost {taken['cost']:,.2f})" if taken["cost"] else ""
    hours = f"{device_hours(taken['device_hours'])} device-hours{money}"
    so_far = f"Finished stages took {hours} and {duration(taken['seconds'])} of work in all."
    if not ahead:
        return [so_far]
    known = [training.device_hours for training in ahead if training.device_hours is not None]
    trainings = "1 training" if len(ahead) == 1 else f"{len(ahead)} trainings"
    unknown = len(ahead) - len(known)
    more = f"; the time of {unknown} of them is not known" if unknown else ""
    hours = device_hours(sum(known))
    about = hours if hours.startswith("less") else f"about {hours}"
    return [so_far, f"{trainings} will take {about} device-hours{more}."]


def show_logs(goals: Sequence[ShownGoal], store: Store, wanted: str | None) -> int:
    """Prints the logs of stages on stderr, sorted by time.

    Args:
        goals: the stages that the chain must finish.
        store: store with the chain's results.
        wanted: label or entry of a goal, to print the logs of the goal's stage and of all its inputs; or kind or folder
            of a stage, to print only the log of this stage. None prints the logs of all stages.

    Returns:
        The number of printed lines.

    Raises:
        ConfigError: no stage or goal has this name. The message names the nearest name.
    """
    everywhere = everything(goal.stage for goal in goals)
    folders = {stage.key: store.folder_of(stage) for stage in everywhere}
    of_goals = everything(goal.stage for goal in goals if wanted in (None, goal.label, goal.name))
    named = [stage for stage in everywhere if wanted in (stage.kind, f"{stage.kind}/{folders[stage.key].name}")]
    chosen = of_goals or named
    if not chosen:
        known = {goal.label for goal in goals} | {stage.kind for stage in everywhere}
        raise ConfigError(f"no stage is called {wanted}", nearest(str(wanted), known))
    lines = [line for stage in chosen for line in logged_lines(folders[stage.key])]
    lines.sort(key=lambda line: str(line.get("time", "")))
    for line in lines:
        plain = f"{str(line.get('time', ''))[:19]}  {line.get('stage', '')}  {line.get('message', '')}"
        # stops when nobody reads the output any more, for example after `| head` has ended
        if is_unread():
            break
        sys.stderr.write(f"{json.dumps(line) if logs_json() else printable(plain)}\n")
    return len(lines)
