"""Distances that no order of summation changes."""

from fractions import Fraction

import numpy as np
import pytest

from adapt.errors import DataError
from adapt.index.rows import distances_to, unit_rows


def test_distances_have_no_error_at_all() -> None:
    rows = unit_rows(np.random.default_rng(0).normal(size=(40, 384)))
    exact = [
        1 - sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(rows[0], row, strict=True)) for row in rows
    ]
    assert [Fraction(each) for each in distances_to(rows[0], rows).tolist()] == exact


def test_rows_have_length_one_whatever_the_vectors_length() -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 8)) * np.array([[1e-30], [1e-3], [1], [1e3], [1e30]])
    np.testing.assert_allclose(np.linalg.norm(unit_rows(vectors).astype(float), axis=1), 1, atol=1e-3)


def test_a_vector_of_length_zero_is_as_far_from_all_as_one_at_right_angles() -> None:
    rows = unit_rows(np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert distances_to(rows[0], rows).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_by_their_place(wrong: float) -> None:
    vectors = np.ones((4, 3))
    vectors[2, 1] = wrong
    with pytest.raises(DataError, match="vector 2 of 4 has numbers that are not finite"):
        unit_rows(vectors)


def test_another_dimension_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape \[4, 3\] where \[n, 5\] is needed"):
        unit_rows(np.ones((4, 3)), 5)
