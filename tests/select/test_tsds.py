"""Tests TSDS and its transport plan against a linear program."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from adapt.index.exact_search import unit_rows
from adapt.select import tsds
from adapt.select.selection import NEVER, Given, Offer, Room, draws_at
from adapt.select.table import selection_of
from adapt.select.tsds import Surroundings, best_level, level_of_support
from tests.index.clusters import clustered
from tests.select.pools import embedded, given, numbered

FIRST = 2**24 - 40
POOL, TARGET = clustered(150, 8), clustered(5, 8, seed=4)
POOL[100:130] = POOL[:30] * 1.01  # documents 100 to 129 point in the same directions as documents 0 to 29
IDS = FIRST + np.arange(len(POOL), dtype=np.int64)


@pytest.fixture
def situation(tmp_path: Path) -> Given:
    return given(numbered(["text"] * len(POOL), FIRST), vectors=embedded(tmp_path, POOL, IDS, TARGET))


def scored(
    situation: Given, documents: int = 1, seed: int = 0, **options: float
) -> tuple[Offer, np.ndarray, dict[str, float]]:
    """Returns the result of `look_for`, the score of each document, and the selection's metrics."""
    selection = selection_of("tsds", options, seed)
    selection.learn(situation)
    offer = selection.look_for(Room(documents=documents), None)
    return offer, np.array(list(selection.scores(situation.pool, situation.target))), selection.figures()


def by_hand(alpha: float, sigma: float, wanted: int, pool: np.ndarray = POOL) -> np.ndarray:
    """Returns the mass that the transport plan moves to each document, computed from the distances of all pairs."""
    rows, target = (unit_rows(each.astype(np.float16)).astype(np.float64) for each in (pool, TARGET))
    rows = unit_rows(pool).astype(np.float64)
    apart = np.maximum(1 - rows @ rows.T, 0) * 2
    densities = np.maximum(np.clip(1 - apart / sigma**2, 0, 1).sum(1), 1) if sigma else np.ones(len(pool))
    distances = np.sqrt(2 * np.maximum(1 - target @ rows.T, 0))
    order = np.argsort(distances, axis=1, kind="stable")
    around = Surroundings(np.take_along_axis(distances, order, 1), 1 / densities[order])
    level = max(best_level(around, alpha, 5), level_of_support(around, order, wanted))
    return np.bincount(order.ravel(), around.masses(level).ravel(), len(pool))


@pytest.mark.parametrize(("alpha", "sigma", "wanted"), [(0.6, 0.75, 1), (0.9, 0.75, 1), (0.9, 0.0, 1), (0.95, 0.5, 60)])
@pytest.mark.parametrize("first", [4, 64])
def test_scores_are_log_masses_with_noise_for_any_number_of_first_neighbours(
    situation: Given, alpha: float, sigma: float, wanted: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsds, "FIRST_NEIGHBOURS", first)
    _, scores, figures = scored(situation, wanted, alpha=alpha, sigma=sigma)
    masses = by_hand(alpha, sigma, wanted)
    noise = -np.log(-np.log(draws_at(IDS, 0, tsds.NOISE)))
    with np.errstate(divide="ignore"):
        expected = np.where(masses > 1e-12, np.log(masses) + noise, NEVER)
    there = masses > 1e-9  # smaller masses may be rounding errors
    np.testing.assert_allclose(scores[there], expected[there], rtol=1e-6)
    assert (scores[masses == 0] == NEVER).all()
    assert figures["documents_with_mass"] == (scores > NEVER).sum() >= wanted


def test_copies_share_the_mass_of_one_document(situation: Given) -> None:
    """Only copies are closer to each other than sigma, which is 0.1 here.

    The masses of the copies must add up to the mass of a single document.
    """
    masses = by_hand(0.9, 0.1, 1)
    alone = by_hand(0.9, 0.1, 1, np.delete(POOL, np.s_[100:130], axis=0))
    known = np.flatnonzero(alone[:30] > 0.005)
    assert len(known) > 1
    np.testing.assert_allclose(masses[known] + masses[100 + known], alone[known], rtol=0.05)
    dense, plain = (scored(situation, alpha=0.97, sigma=sigma)[2] for sigma in (0.75, 0.0))
    assert dense["density"] > plain["density"] == 1
    assert dense["neighbours"] > plain["neighbours"]


def test_a_smaller_alpha_gives_mass_to_more_documents_and_another_seed_draws_others(situation: Given) -> None:
    near, far = (scored(situation, alpha=alpha)[2]["documents_with_mass"] for alpha in (0.95, 0.6))
    assert near < far
    one, same, other = (np.argsort(-scored(situation, seed=seed)[1])[:10].tolist() for seed in (0, 0, 1))
    assert one == same != other


def test_a_budget_beyond_the_pool_offers_all_documents(situation: Given) -> None:
    offer, scores, _ = scored(situation, documents=500)
    assert offer == "all"
    assert (scores > NEVER).all()
    assert scored(situation, documents=10)[0] == "more"


def test_documents_outside_a_narrowed_pool_are_ignored(situation: Given, tmp_path: Path) -> None:
    left = np.arange(0, 100)
    small = given(numbered(["text"] * 150, FIRST).narrowed(IDS[left]), vectors=situation.vectors, permitted=IDS[left])
    alone = given(numbered(["text"] * 100, FIRST), vectors=embedded(tmp_path / "alone", POOL[left], IDS[left], TARGET))
    np.testing.assert_allclose(scored(small)[1], scored(alone)[1])


TEXTS, DOCUMENTS = 4, 18


def world(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random distances [texts, documents] and random densities [documents]."""
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
    """Returns the minimum of the objective by linear programming.

    The variables are the plan, row by row, and the largest deviation.
    """
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
    assert level <= (1 / densities).sum() / 2  # beyond this, the second term is constant
    plan = np.zeros_like(distances)
    np.put_along_axis(plan, ids, around.masses(level), 1)
    np.testing.assert_allclose(plan.sum(1), 1 / TEXTS)
    best = solved(distances, densities, alpha, scale)
    assert objective(plan, distances, densities, alpha, scale) == pytest.approx(best, rel=1e-9)


def test_farther_documents_matter_only_if_all_nearer_ones_are_full() -> None:
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


def test_near_copies_share_the_mass_of_one_document() -> None:
    """Checks a pool of three documents, first without and then with copies.

    In the second case, the nearest document occurs four times, so each copy has density four.
    """
    once = Surroundings(np.array([[0.1, 0.5, 0.9]]), np.ones((1, 3)))
    copied = Surroundings(np.array([[0.1] * 4 + [0.5, 0.9]]), np.array([[0.25] * 4 + [1, 1]]))
    for alpha in (0.3, 0.6, 0.9):
        level = best_level(once, alpha, 1.0)
        assert best_level(copied, alpha, 1.0) == pytest.approx(level)
        assert copied.masses(level)[0, :4].sum() == pytest.approx(once.masses(level)[0, 0])


@pytest.mark.parametrize("count", [1, 4, 5, 9, 18, 30])
def test_the_level_gives_mass_to_the_requested_number_of_documents(count: int) -> None:
    around, ids = sorted_world(*world(2))

    def with_mass(level: float) -> int:
        return len(np.unique(ids[around.masses(level) > 1e-12]))

    level = level_of_support(around, ids, count)
    assert with_mass(level) >= min(count, DOCUMENTS)
    lower = around.levels[around.levels < level]
    assert not len(lower) or with_mass(lower[-1]) < count


def test_missing_neighbours_get_no_mass() -> None:
    """An approximate index finds fewer neighbours for some texts. A missing neighbour has an infinite distance."""
    distances = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.3, np.inf, np.inf]])
    shares = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    around = Surroundings(distances, shares)
    for level in (0.5, 1, 2, 2.5, 4):
        masses = around.masses(level)
        np.testing.assert_allclose(masses.sum(1), 0.5)
        assert (masses[1, 2:] == 0).all()
        assert (masses >= 0).all()
        assert np.isfinite(around.spent(level))
