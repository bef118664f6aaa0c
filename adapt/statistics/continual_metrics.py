"""Computes learning, forgetting and transfer over a sequence of domains, from the measurements after each domain.

Row t of a matrix A has the measurements of the model after t domains. Row 0 belongs to the base model. Each column
belongs to a task or to a held-out text of a domain. General text also has a column, but it belongs to no domain. A
metric is None if it cannot be computed, because a cell is missing or there is only one domain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapt.support.better import Less, More


@dataclass(frozen=True)
class SequenceFigures:
    """The metrics of a sequence of domains. A metric is None if it cannot be computed."""

    average: More[float | None]
    learning: More[float | None]
    forgetting: Less[float | None]
    forward_transfer: More[float | None]
    loss_average: Less[float | None]
    loss_learning: Less[float | None]
    loss_forgetting: Less[float | None]
    loss_forward_transfer: More[float | None]
    """Mean decrease of a domain's loss before the domain is learnt [nats]. It is positive if losses fall."""
    general_change: Less[float | None]


@dataclass(frozen=True)
class Matrix:
    """Scores or losses of a sequence: one row per number of domains learnt, one column per task or text."""

    columns: Mapping[str, int | None]
    """Index of each column's domain in the order learnt, from 0. None for general text."""
    rows: Sequence[Mapping[str, float]]
    """Measured values of each column [domains + 1]. The first row belongs to the model before any domain."""
    gain: int
    """Sign of an improvement: 1 if larger values are better, -1 if smaller values are better."""

    @property
    def domains(self) -> int:
        """Number of domains T."""
        return len(self.rows) - 1

    @property
    def numbers(self) -> dict[str, int]:
        """Index of each column's domain, keyed by column. Columns of general text are left out."""
        return {name: number for name, number in self.columns.items() if number is not None}

    def change(self, column: str, since: int, until: int) -> float | None:
        """Returns how much a column improves from row `since` to row `until`; negative if it gets worse."""
        change = _difference(self.rows[until].get(column), self.rows[since].get(column))
        return None if change is None else self.gain * change


def scores_of(measured: Mapping[str, Any]) -> Matrix:
    """Reads the matrix of `scores` in a sequence's record. Each cell is the mean over the seeds of fine-tuning."""
    rows = [{task: sum(cell) / len(cell) for task, cell in row.items() if cell} for row in measured["rows"]]
    return Matrix(measured["columns"], rows, 1)


def losses_of(measured: Mapping[str, Any]) -> Matrix:
    """Reads the matrix of `losses` in a sequence's record [nats per predicted token], without unmeasured texts."""
    rows = [{name: cell for name, cell in row.items() if cell is not None} for row in measured["rows"]]
    columns = {name: number for name, number in measured["columns"].items() if any(name in row for row in rows)}
    return Matrix(columns, rows, -1)


def learnt(matrix: Matrix) -> dict[str, float | None]:
    """Returns A_ii: the value of each column just after the column's domain was learnt, without general text."""
    return {name: matrix.rows[number + 1].get(name) for name, number in matrix.numbers.items()}


def final(matrix: Matrix, mode: str = "continual") -> dict[str, float | None]:
    """Returns A_Ti: the value of each column after the last domain was learnt, without general text.

    In mode `separate`, each domain has its own model, and the column's value is measured with this model.
    """
    return learnt(matrix) if mode == "separate" else {name: matrix.rows[-1].get(name) for name in matrix.numbers}


def average(matrix: Matrix, mode: str = "continual") -> float | None:
    """Returns the mean of A_Ti over all columns, which measures the model after the last domain."""
    return _mean(final(matrix, mode).values())


def learning(matrix: Matrix) -> float | None:
    """Returns the mean of A_ii over all columns: how well domains are learnt, regardless of later forgetting."""
    return _mean(learnt(matrix).values())


def forgetting(matrix: Matrix) -> float | None:
    """Returns the forgetting rate: the mean of A_ii - A_Ti over all domains but the last (arXiv 2302.03241).

    If domains have several tasks, the mean is over tasks. For losses the sign is reversed. So for scores and for
    losses, a positive rate means forgetting, and a negative rate means backward transfer.
    """
    end = matrix.domains
    return _mean(matrix.change(name, end, number + 1) for name, number in matrix.numbers.items() if number + 1 < end)


def forward_transfer(matrix: Matrix) -> float | None:
    """Returns how much columns improve from the base model to the model just before their own domain is learnt.

    This is the mean over all domains but the first (Lopez-Paz and Ranzato 2017, arXiv 1706.08840, equation 4).
    """
    return _mean(matrix.change(name, 0, number) for name, number in matrix.numbers.items() if number)


def against_separate(matrix: Matrix, separate: Matrix) -> float | None:
    """Returns the effect of earlier domains: the mean difference between A_ii and a model that learnt only domain i."""
    mine, theirs = learnt(matrix), learnt(separate)
    return _mean(_difference(mine[name], theirs.get(name)) for name in mine)


def general_changes(losses: Matrix) -> list[float | None]:
    """Returns the increase of the loss on general text after each domain [domains]; positive means forgetting."""
    names = [name for name, number in losses.columns.items() if number is None]
    changes = [losses.change(name, row, 0) for name in names[:1] for row in range(1, len(losses.rows))]
    return changes or [None] * losses.domains


def sequence_figures(
    scores: Mapping[str, Any], losses: Mapping[str, Any], mode: str = "continual"
) -> dict[str, float | None]:
    """Computes all metrics of a sequence, keyed by name. Scores are fractions, losses are in nats.

    Args:
        scores: `columns` has the index of each task's domain, `rows` the scores of each task's fine-tuning seeds.
        losses: `columns` has the index of each text's domain (null for general text), `rows` the held-out losses.
        mode: `continual`, `separate` (row t belongs to a model that has learnt only domain t - 1) or `joint` (the last
            row belongs to a model of all domains at once). Only `continual` has forgetting and forward transfer.
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
    """Returns the mean of some values. None if there are no values or one of them is None."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None) / len(known)
