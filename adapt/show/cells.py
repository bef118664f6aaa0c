"""Turns values into the text of cells, in the same way wherever results are shown."""

from collections.abc import Sequence
from typing import Any

from adapt.show.blocks import NONE, Cell, Table

TRANSDUCTIVE = " († transductive: pre-training has read the text of dev and test)"
"""Added to titles of results of models that were trained on the text that they are tested on."""


def formatted(value: Any, form: str) -> str:
    """A value in a format such as `{:.3f}`; a dash for None."""
    return NONE if value is None else form.format(value)


def in_points(score: float | None, form: str = ".1f") -> str:
    """A score between 0 and 1 in points of 100; a dash for None."""
    return NONE if score is None else f"{100 * score:{form}}"


def interval(low: float | None, high: float | None, form: str) -> str:
    """The ends of an interval, as `1.2 to 3.4`; empty where it is not known."""
    return "" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def estimated(value: float | None, low: float | None, high: float | None, form: str) -> Cell:
    """A value with its interval on the cell's second line; a dash for None."""
    return Cell(NONE) if value is None else Cell(f"{value:{form}}", interval(low, high, form))


def darkness(values: Sequence[float]) -> list[float]:
    """How dark each cell of a heatmap is: from 0 for the highest value to 1 for the lowest; all 0 if they are equal."""
    low, high = min(values), max(values)
    return [(high - value) / (high - low) if high > low else 0.0 for value in values]


def square(names: Sequence[str], matrix: Sequence[Sequence[float]], title: str, note: str, is_share: bool) -> Table:
    """A square matrix as a heatmap. Shares are dark where they are high, other figures where they are low.

    Args:
        names: of rows and columns.
        matrix: [names, names].
        title: of the table.
        note: below it.
        is_share: whether the values are shares, shown as percentages.
    """
    flat = darkness([value for row in matrix for value in row])
    rows: list[list[Cell | str]] = []
    for number, (name, values) in enumerate(zip(names, matrix, strict=True)):
        shades = values if is_share else flat[number * len(values) : (number + 1) * len(values)]
        texts = [f"{100 * value:.0f}%" if is_share else f"{value:.2f}" for value in values]
        rows.append([name, *(Cell(text, shade=shade) for text, shade in zip(texts, shades, strict=True))])
    return Table(["", *names], rows, title, note)
