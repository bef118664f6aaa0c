"""Figures of a sequence of domains, from what was measured after each.

Row t of a matrix A is of the model after t domains, row 0 of the model as it came. A column is a task, or the held-out
text of a domain; the one of general text belongs to no domain. What cannot be told, because a cell is missing or there
is one domain only, is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.support.better import Less, More


@dataclass(frozen=True)
class SequenceFigures:
    """The figures that are read off the matrices of a sequence. None where a figure cannot be told."""

    average: More[float | None]
    learning: More[float | None]
    forgetting: Less[float | None]
    forward_transfer: More[float | None]
    loss_average: Less[float | None]
    loss_learning: Less[float | None]
    loss_forgetting: Less[float | None]
    loss_forward_transfer: More[float | None]
    """By how much losses fall before their domain is learnt: the sign is turned, so that more is better."""
    general_change: Less[float | None]


@dataclass(frozen=True)
class Matrix:
    """Scores or losses of a sequence: a row for each number of domains learnt, a column for each task or text."""

    columns: Mapping[str, int | None]
    """The number of each column's domain, counted from 0 in the order learnt; None for general text."""
    rows: Sequence[Mapping[str, float]]
    """The measured cells by column, [domains + 1]. The first row is the model before any domain."""
    gain: int
    """1 if more is better, -1 if less is better."""

    @property
    def domains(self) -> int:
        """T, the number of domains."""
        return len(self.rows) - 1

    @property
    def numbers(self) -> dict[str, int]:
        """The number of the domain of each column; columns of general text are left out."""
        return {name: number for name, number in self.columns.items() if number is not None}

    def change(self, column: str, since: int, until: int) -> float | None:
        """By how much a column gets better between two rows; negative where it gets worse."""
        change = _difference(self.rows[until].get(column), self.rows[since].get(column))
        return None if change is None else self.gain * change


def scores_of(measured: Mapping[str, Any]) -> Matrix:
    """The matrix of `scores` in a sequence's record. Each cell is the mean over the seeds of fine-tuning."""
    rows = [{task: sum(cell) / len(cell) for task, cell in row.items() if cell} for row in measured["rows"]]
    return Matrix(measured["columns"], rows, 1)


def losses_of(measured: Mapping[str, Any]) -> Matrix:
    """The matrix of `losses` in a sequence's record [nats a predicted token], without texts that were not measured."""
    rows = [{name: cell for name, cell in row.items() if cell is not None} for row in measured["rows"]]
    columns = {name: number for name, number in measured["columns"].items() if any(name in row for row in rows)}
    return Matrix(columns, rows, -1)


def learnt(matrix: Matrix) -> dict[str, float | None]:
    """A_ii: each column just after its own domain was learnt. General text is left out."""
    return {name: matrix.rows[number + 1].get(name) for name, number in matrix.numbers.items()}


def final(matrix: Matrix, mode: str = "continual") -> dict[str, float | None]:
    """A_Ti: each column after the last domain.

    General text is left out. In mode `separate` it is that of the domain's own model.
    """
    return learnt(matrix) if mode == "separate" else {name: matrix.rows[-1].get(name) for name in matrix.numbers}


def average(matrix: Matrix, mode: str = "continual") -> float | None:
    """The mean of A_Ti: how good the last model is over all columns."""
    return _mean(final(matrix, mode).values())


def learning(matrix: Matrix) -> float | None:
    """The mean of A_ii: how well domains are learnt, whatever is forgotten of them later."""
    return _mean(learnt(matrix).values())


def forgetting(matrix: Matrix) -> float | None:
    """Forgetting rate, mean of A_ii - A_Ti over all domains but the last (arXiv 2302.03241).

    Where domains have several tasks, the mean is over tasks. For losses the sign is turned: positive is forgetting,
    negative is backward transfer, for both.
    """
    end = matrix.domains
    return _mean(matrix.change(name, end, number + 1) for name, number in matrix.numbers.items() if number + 1 < end)


def forward_transfer(matrix: Matrix) -> float | None:
    """By how much columns are better just before their domain is learnt than they were in the beginning.

    The mean over all domains but the first (Lopez-Paz and Ranzato 2017, arXiv 1706.08840, equation 4).
    """
    return _mean(matrix.change(name, 0, number) for name, number in matrix.numbers.items() if number)


def against_separate(matrix: Matrix, separate: Matrix) -> float | None:
    """Mean of A_ii minus what models have that learnt its domain alone: what the domains before do for learning it."""
    mine, theirs = learnt(matrix), learnt(separate)
    return _mean(_difference(mine[name], theirs.get(name)) for name in mine)


def general_changes(losses: Matrix) -> list[float | None]:
    """How much the loss on general text has grown after each domain [domains]; positive means forgetting."""
    names = [name for name, number in losses.columns.items() if number is None]
    changes = [losses.change(name, row, 0) for name in names[:1] for row in range(1, len(losses.rows))]
    return changes or [None] * losses.domains


def sequence_figures(
    scores: Mapping[str, Any], losses: Mapping[str, Any], mode: str = "continual"
) -> dict[str, float | None]:
    """All figures of a sequence by name; scores are fractions, losses nats.

    Args:
        scores: `columns`, the number of each task's domain, and `rows`, of each task its fine-tuning seeds' scores.
        losses: likewise, of each domain and of general text (number null) its held-out loss.
        mode: `continual`, `separate` (row t is of a model that has learnt domain t - 1 alone) or `joint` (all at once,
            the last row). Forgetting and forward transfer are of `continual` alone.
    """
    matrices = {"": scores_of(scores), "loss_": losses_of(losses)}
    figures = {
        f"{prefix}{name}": value for prefix, matrix in matrices.items() for name, value in _of(matrix, mode).items()
    }
    changes = general_changes(matrices["loss_"])
    figures["general_change"] = _mean(changes if mode == "separate" else changes[-1:])
    return figures


def _of(matrix: Matrix, mode: str) -> dict[str, float | None]:
    in_turn = mode == "continual"
    return {
        "average": average(matrix, mode),
        "learning": learning(matrix),
        "forgetting": forgetting(matrix) if in_turn else None,
        "forward_transfer": forward_transfer(matrix) if in_turn else None,
    }


def _difference(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of some values; None if there are none, or one of them is missing."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None) / len(known)
