"""What a chain file has done, and what is ahead."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from adapt.runner.lock import is_held
from adapt.runner.stage import Stage
from adapt.runner.store import Store
from adapt.show.blocks import Table

START = "start.training"
"""The input that is another entry's training; see `adapt.model.start.Start`."""
STATES = ("finished", "running", "waiting")
ENTRY_COLUMNS = ("entry", *STATES, "which")


class ShownGoal(Protocol):
    """A stage that a chain is to finish; see `adapt.chain.build.Goal`."""

    @property
    def name(self) -> str:
        """The name of its entry in the file."""

    @property
    def label(self) -> str:
        """The name, with the members of sets that it stands for."""

    @property
    def stage(self) -> Stage[Any]:
        """The stage that is to be finished."""


def goals_table(goals: Sequence[ShownGoal], store: Store) -> Table:
    """One row for each entry of the file: how many of its stages are finished, are being worked on, wait."""
    return Table(ENTRY_COLUMNS, [entry_row(name, of) for name, of in states_by_entry(goals, store).items()], words=True)


def goal_states(goals: Sequence[ShownGoal], store: Store) -> dict[str, int]:
    """How many goals are finished, running, waiting."""
    states = states_by_entry(goals, store)
    return {state: sum(len(members[state]) for members in states.values()) for state in STATES}


def states_by_entry(goals: Sequence[ShownGoal], store: Store) -> dict[str, dict[str, list[str]]]:
    """For each entry of the file, its members by their state; a member is what a label has besides its entry's name."""
    states: dict[str, dict[str, list[str]]] = {}
    for goal in goals:
        members = states.setdefault(goal.name, {state: [] for state in STATES})
        members[_state(goal.stage, store)].append(goal.label.removeprefix(goal.name).strip("[]"))
    return states


def entry_row(name: str, members: Mapping[str, Sequence[str]]) -> list[str]:
    """An entry's cells, as ENTRY_COLUMNS names them."""
    left = [*members["running"], *members["waiting"]]
    more = f" and {len(left) - 4} more" if len(left) > 4 else ""
    return [name, *(str(len(members[state])) for state in STATES), "; ".join(left[:4]) + more]


def _state(stage: Stage[Any], store: Store) -> str:
    if store.known(stage.kind, stage.name, stage.key):
        return "finished"
    running = is_held(store.folder(stage.kind, stage.name, stage.key)) or _works_for(stage, store)
    return "running" if running else "waiting"


def _works_for(stage: Stage[Any], store: Store) -> bool:
    """Whether something that a stage needs is being made now.

    The model that it starts from does not count if another entry makes it.
    """
    return any(
        is_held(store.folder(needed.kind, needed.name, needed.key)) or _works_for(needed, store)
        for name, needed in stage.inputs.items()
        if name != START and not store.known(needed.kind, needed.name, needed.key)
    )


def trainings_table(trainings: Sequence[tuple[str, int | None, float | None, float | None]]) -> Table | None:
    """Label, tokens, device-hours and price of the trainings ahead, and their sum where all are known."""
    if not trainings:
        return None
    columns = list(zip(*trainings, strict=True))[1:]
    sums = (None if None in column else sum(column) for column in columns)
    rows = [
        [str(label), _figure(tokens, ","), _figure(hours, ".3g"), _figure(cost, ",.2f")]
        for label, tokens, hours, cost in (*trainings, ("all", *sums))
    ]
    note = "A question mark: not known before the text is prepared."
    return Table(["training", "tokens", "device-hours", "cost"], rows, "The trainings ahead", note)


def _figure(value: Any, form: str) -> str:
    return "?" if value is None else format(value, form)
