"""The plan of optimal transport, against a linear programme."""

import numpy as np
import pytest
from scipy.optimize import linprog

from adapt.select.vectors.transport import Surroundings, best_level, level_of_support

TEXTS, DOCUMENTS = 4, 18


def world(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances [texts, documents] and a density a document."""
    draw = np.random.default_rng(seed)
    return draw.uniform(0.3, 1.4, (TEXTS, DOCUMENTS)), draw.uniform(1, 4, DOCUMENTS)


def sorted_world(distances: np.ndarray, densities: np.ndarray) -> tuple[Surroundings, np.ndarray]:
    ids = np.argsort(distances, axis=1)
    return Surroundings(np.take_along_axis(distances, ids, 1), 1 / densities[ids]), ids


def objective(plan: np.ndarray, distances: np.ndarray, densities: np.ndarray, alpha: float, scale: float) -> float:
    uniform = (1 / densities) / (TEXTS * (1 / densities).sum())
    spread = TEXTS * (densities * np.abs(plan - uniform)).max()
    return float(alpha / scale * (plan * distances).sum() + (1 - alpha) * spread)


def solved(distances: np.ndarray, densities: np.ndarray, alpha: float, scale: float) -> float:
    """The least value of the objective. The unknowns are the plan, row by row, and the largest deviation."""
    count = TEXTS * DOCUMENTS
    uniform = np.tile((1 / densities) / (TEXTS * (1 / densities).sum()), TEXTS)
    weight = TEXTS * np.tile(densities, TEXTS)
    above = np.hstack([np.diag(weight), -np.ones((count, 1))])
    below = np.hstack([np.diag(-weight), -np.ones((count, 1))])
    rows = np.hstack([np.kron(np.eye(TEXTS), np.ones(DOCUMENTS)), np.zeros((TEXTS, 1))])
    found = linprog(
        np.append(alpha / scale * distances.ravel(), 1 - alpha),
        A_ub=np.vstack([above, below]),
        b_ub=np.concatenate([weight * uniform, -weight * uniform]),
        A_eq=rows,
        b_eq=np.full(TEXTS, 1 / TEXTS),
    )
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("alpha", "scale"), [(0.6, 1.0), (0.6, 0.3), (0.8, 2.0), (0.9, 1.0), (0.97, 0.5)])
def test_the_plan_is_the_solution_of_the_linear_programme(seed: int, alpha: float, scale: float) -> None:
    distances, densities = world(seed)
    around, ids = sorted_world(distances, densities)
    level = best_level(around, alpha, scale)
    assert level <= (1 / densities).sum() / 2  # beyond this the second term says nothing
    plan = np.zeros_like(distances)
    np.put_along_axis(plan, ids, around.masses(level), 1)
    np.testing.assert_allclose(plan.sum(1), 1 / TEXTS)
    best = solved(distances, densities, alpha, scale)
    assert objective(plan, distances, densities, alpha, scale) == pytest.approx(best, rel=1e-9)


def test_documents_that_were_not_looked_at_change_nothing_unless_all_are_used_up() -> None:
    distances, densities = world(0)
    around, _ = sorted_world(distances, densities)
    level = best_level(around, 0.6, 0.3)
    few = Surroundings(around.distances[:, :8], around.shares[:, :8])
    assert not few.are_used_up(level).any()
    assert best_level(few, 0.6, 0.3) == level
    np.testing.assert_allclose(few.masses(level), around.masses(level)[:, :8])
    assert few.are_used_up(best_level(few, 0.0, 1.0)).any()


def test_a_smaller_alpha_spreads_the_mass_further_and_the_largest_takes_the_nearest() -> None:
    around, _ = sorted_world(*world(1))
    levels = [best_level(around, alpha, 1.0) for alpha in (1.0, 0.9, 0.6, 0.3, 0.0)]
    assert levels == sorted(levels)
    assert levels[0] == around.shares[:, 0].min()
    assert levels[-1] == around.reach[:, -1].max()


def test_near_copies_share_what_one_of_them_would_get() -> None:
    """Three documents; of the nearest there are four copies, whose density is four."""
    once = Surroundings(np.array([[0.1, 0.5, 0.9]]), np.ones((1, 3)))
    copied = Surroundings(np.array([[0.1] * 4 + [0.5, 0.9]]), np.array([[0.25] * 4 + [1, 1]]))
    for alpha in (0.3, 0.6, 0.9):
        level = best_level(once, alpha, 1.0)
        assert best_level(copied, alpha, 1.0) == pytest.approx(level)
        assert copied.masses(level)[0, :4].sum() == pytest.approx(once.masses(level)[0, 0])


@pytest.mark.parametrize("count", [1, 4, 5, 9, 18, 30])
def test_a_level_gives_mass_to_as_many_documents_as_are_wanted(count: int) -> None:
    around, ids = sorted_world(*world(2))

    def with_mass(level: float) -> int:
        return len(np.unique(ids[around.masses(level) > 1e-12]))

    level = level_of_support(around, ids, count)
    assert with_mass(level) >= min(count, DOCUMENTS)
    lower = around.levels[around.levels < level]
    assert not len(lower) or with_mass(lower[-1]) < count


def test_places_without_a_document_have_no_mass() -> None:
    """An index of some candidates finds fewer for some texts."""
    distances = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.3, np.inf, np.inf]])
    shares = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    around = Surroundings(distances, shares)
    for level in (0.5, 1, 2, 2.5, 4):
        masses = around.masses(level)
        np.testing.assert_allclose(masses.sum(1), 0.5)
        assert (masses[1, 2:] == 0).all()
        assert (masses >= 0).all()
        assert np.isfinite(around.spent(level))
