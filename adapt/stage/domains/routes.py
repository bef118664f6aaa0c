"""How a sequence's models with parts for each domain do without being told the domain of a text."""

from collections.abc import Iterator, Sequence

from adapt.evaluate.results import TextLoss
from adapt.method.notes import NoteTable
from adapt.runner import Done
from adapt.stage.domains.matrices import Step

COLUMNS = ["loss, domain given", "loss, nearest domain", "nearest is right"]
MIXTURE = "loss, mixture"


def route_table(steps: Sequence[Step], done: Done) -> NoteTable | None:
    """Held-out losses with and without domain ids, and how often the nearest prototype is that of the domain.

    Models with experts have another loss without ids: that of their mixture.

    Args:
        steps: of the sequence.
        done: their evaluations.

    Returns:
        A row for each model and domain that it has parts for; None if there are none.
    """
    rows, has_mixture = {}, False
    for step in steps:
        measured = dict(_measured(step, done))
        for name, text in measured.items():
            rows[f"after {step.learnt}: {name}" if step.is_on_the_last else name] = _cells(text)
            has_mixture |= text.mixed is not None
    columns = [*COLUMNS, MIXTURE] if has_mixture else COLUMNS
    return NoteTable("Losses without domain ids", columns, rows) if rows else None


def _measured(step: Step, done: Done) -> Iterator[tuple[str, TextLoss]]:
    """What was measured of a model on each domain that it has parts for."""
    if step.own is None:
        return
    others = done[step.others].result.texts if step.others else {}
    for name, text in {**others, step.domain: done[step.own].result.texts["domain"]}.items():
        if text.routed_right is not None:
            yield name, text


def _cells(text: TextLoss) -> list[str]:
    assert text.loss is not None
    assert text.routed is not None
    mixed = [] if text.mixed is None else [f"{text.mixed:.3f}"]
    return [f"{text.loss:.3f}", f"{text.routed:.3f}", f"{text.routed_right:.1%}", *mixed]
