"""The choice of units, against a plain loop and against its own promise: the budget is met on average."""

from math import sqrt

import torch
from hypothesis import given
from hypothesis import strategies as st

from adapt.objective.noise import uniform
from adapt.objective.units import at_least_one, heads_of, take_units, unit_lengths

shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12)


def row_of(units: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts and eligible tokens of a row, from each unit's tokens and how many of them are eligible."""
    starts = [place == 0 for tokens, _ in units for place in range(tokens)]
    eligible = [place < count for tokens, count in units for place in range(tokens)]
    return torch.tensor([starts]), torch.tensor([eligible])


@given(shapes)
def test_heads_and_sizes(units: list[tuple[int, int]]) -> None:
    starts, eligible = row_of(units)
    heads = heads_of(starts)
    size = unit_lengths(heads, eligible)
    place = 0
    for tokens, count in units:
        assert heads[0, place : place + tokens].tolist() == [place] * tokens
        assert size[0, place : place + tokens].tolist() == [min(count, tokens)] + [0] * (tokens - 1)
        place += tokens


def by_hand(order: list[float], size: list[int], budget: float, crossing: float) -> list[bool]:
    taken = [False] * len(size)
    left = budget
    for _, place in sorted((number, place) for place, number in enumerate(order) if size[place]):
        if left <= 0:
            break
        taken[place] = size[place] <= left or crossing < left / size[place]
        left -= size[place]
    return taken


@given(shapes, st.floats(0, 1), st.integers(0, 99))
def test_units_are_taken_as_by_hand(units: list[tuple[int, int]], share: float, seed: int) -> None:
    starts, eligible = row_of(units)
    size = unit_lengths(heads_of(starts), eligible)
    budget = share * float(eligible.sum())
    order = uniform(seed, 0, torch.tensor([0]), torch.tensor([0]), eligible.shape[1])
    crossing = uniform(seed, 1, torch.tensor([0]), torch.tensor([0]), 1)[:, 0]
    taken = take_units(order, size, torch.tensor([budget], dtype=torch.float64), crossing)
    assert taken[0].tolist() == by_hand(order[0].tolist(), size[0].tolist(), budget, float(crossing))


def test_the_expected_number_of_tokens_is_the_budget() -> None:
    rows, budget = 40_000, 7.3
    size = torch.tensor([3, 1, 6, 2, 0, 9, 1, 1, 4, 5]).expand(rows, -1)
    numbers = torch.arange(rows)
    order = uniform(3, 0, torch.zeros_like(numbers), numbers, size.shape[1])
    crossing = uniform(3, 1, torch.zeros_like(numbers), numbers, 1)[:, 0]
    counts = (
        (take_units(order, size, torch.full((rows,), budget, dtype=torch.float64), crossing) * size).sum(1).double()
    )
    assert abs(float(counts.mean()) - budget) < 4 * float(counts.std()) / sqrt(rows)
    assert counts.max() < budget + 9


def test_at_least_one_is_the_first_in_order_and_only_where_there_is_none() -> None:
    order = torch.tensor([[0.1, 0.5, 0.3], [0.1, 0.5, 0.3]], dtype=torch.float64)
    size = torch.tensor([[0, 2, 1], [1, 1, 1]])
    taken = torch.tensor([[False, False, False], [False, True, False]])
    assert at_least_one(taken, order, size).tolist() == [[False, False, True], [False, True, False]]
