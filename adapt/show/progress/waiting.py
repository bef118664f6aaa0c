"""Why stages wait, what has failed, and what all has cost so far."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from adapt.console import duration
from adapt.runner.lock import is_held
from adapt.runner.reach import everything
from adapt.runner.stage import Stage
from adapt.runner.stage_log import failure_of
from adapt.runner.store import Store
from adapt.show.progress.chain import ShownGoal

NAMED = 10
"""The most goals whose reasons are told."""


def reasons_of(goals: Sequence[ShownGoal], store: Store) -> list[tuple[str, str]]:
    """What waits, as `finetune[DAPT, acl_arc, 3] and 4 more`, and why; at most NAMED of them."""
    reasons: dict[str, list[str]] = {}
    for goal in goals:
        if reason := why_waiting(goal.stage, store):
            reasons.setdefault(reason, []).append(goal.label)
    more = {reason: f" and {len(labels) - 1} more" if len(labels) > 1 else "" for reason, labels in reasons.items()}
    return [(f"{labels[0]}{more[reason]}", reason) for reason, labels in list(reasons.items())[:NAMED]]


def why_waiting(stage: Stage[Any], store: Store) -> str:
    """What keeps a stage from being finished; empty where it is, or runs."""
    folder = store.folder(stage.kind, stage.name, stage.key)
    if store.known(stage.kind, stage.name, stage.key) or is_held(folder):
        return ""
    first = next(_unmade(stage, store), None)
    if first is None:
        failure = failure_of(folder)
        return (
            f"failed: {failure}" if failure else "nothing that it needs is missing: it waits for a place, or for a run"
        )
    place, what = store.folder(first.kind, first.name, first.key), f"{first.kind} {first.name}"
    if is_held(place):
        return f"waits for {what}, which runs"
    failure = failure_of(place)
    return f"waits for {what}, which failed: {failure}" if failure else f"waits for {what}, which has not begun"


def _unmade(stage: Stage[Any], store: Store) -> Iterator[Stage[Any]]:
    """The stages that it needs and that are missing, those that need no missing one themselves first."""
    for needed in stage.inputs.values():
        if not store.known(needed.kind, needed.name, needed.key):
            yield from _unmade(needed, store)
            yield needed


def spent(stages: Iterable[Stage[Any]], store: Store) -> dict[str, float]:
    """What the finished stages that some stages lead to have taken.

    Returns:
        `seconds` of work, `device_hours`, and `cost` in the currency of resources.price_per_device_hour.
    """
    total = {"seconds": 0.0, "device_hours": 0.0, "cost": 0.0}
    for stage in everything(stages):
        if record := store.known(stage.kind, stage.name, stage.key):
            for name in total:
                total[name] += record.cost.get(name) or 0.0
    return {name: round(value, 6) for name, value in total.items()}


def spent_lines(
    taken: dict[str, float], ahead: Sequence[tuple[str, int | None, float | None, float | None]]
) -> list[str]:
    """What has been spent, and what is ahead, in a sentence each.

    Args:
        taken: as `spent` gives it.
        ahead: label, tokens, device-hours and price of each training.
    """
    money = f", {taken['cost']:,.2f}" if taken["cost"] else ""
    so_far = f"so far: {taken['device_hours']:.3g} device-hours{money}; {duration(taken['seconds'])} of work in all"
    if not ahead:
        return [so_far]
    hours = [hours for _, _, hours, _ in ahead if hours is not None]
    unknown = f"; not known of {len(ahead) - len(hours)}" if len(hours) < len(ahead) else ""
    return [so_far, f"ahead: {len(ahead)} trainings, about {sum(hours):.3g} device-hours{unknown}"]
