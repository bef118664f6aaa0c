"""Documents drawn by the mass of optimal transport: densities, plan and draw, against brute force."""

from pathlib import Path

import numpy as np
import pytest

from adapt.index.rows import unit_rows
from adapt.select.base import NEVER, Given, Offer, Room
from adapt.select.random import draws_at
from adapt.select.table import selection_of
from adapt.select.vectors import tsds
from adapt.select.vectors.transport import Surroundings, best_level, level_of_support
from tests.index.made import clustered
from tests.select.pools import embedded, given, numbered

FIRST = 2**24 - 40
POOL, TARGET = clustered(150, 8), clustered(5, 8, seed=4)
POOL[100:130] = POOL[:30] * 1.01  # copies
IDS = FIRST + np.arange(len(POOL), dtype=np.int64)


@pytest.fixture
def situation(tmp_path: Path) -> Given:
    return given(numbered(["text"] * len(POOL), FIRST), vectors=embedded(tmp_path, POOL, IDS, TARGET))


def scored(
    situation: Given, documents: int = 1, seed: int = 0, **options: float
) -> tuple[Offer, np.ndarray, dict[str, float]]:
    """What is offered, the score of each document, and figures."""
    selection = selection_of("tsds", options, seed)
    selection.learn(situation)
    offer = selection.look_for(Room(documents=documents), None)
    return offer, np.array(list(selection.scores(situation.pool, situation.target))), selection.figures()


def by_hand(alpha: float, sigma: float, wanted: int, pool: np.ndarray = POOL) -> np.ndarray:
    """The mass of each document, from all pairs."""
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
def test_scores_are_log_masses_with_noise_however_many_neighbours_are_looked_at_first(
    situation: Given, alpha: float, sigma: float, wanted: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsds, "FIRST_NEIGHBOURS", first)
    _, scores, figures = scored(situation, wanted, alpha=alpha, sigma=sigma)
    masses = by_hand(alpha, sigma, wanted)
    noise = -np.log(-np.log(draws_at(IDS, 0, tsds.NOISE)))
    with np.errstate(divide="ignore"):
        expected = np.where(masses > 1e-12, np.log(masses) + noise, NEVER)
    there = masses > 1e-9  # what is left of the rest may be nothing but rounding
    np.testing.assert_allclose(scores[there], expected[there], rtol=1e-6)
    assert (scores[masses == 0] == NEVER).all()
    assert figures["documents_with_mass"] == (scores > NEVER).sum() >= wanted


def test_copies_have_the_mass_of_one_together(situation: Given) -> None:
    """Where nothing but copies is nearer than sigma."""
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


def test_a_budget_beyond_the_pool_is_said_to_be_all_there_is(situation: Given) -> None:
    offer, scores, _ = scored(situation, documents=500)
    assert offer == "all"
    assert (scores > NEVER).all()
    assert scored(situation, documents=10)[0] == "more"


def test_of_a_narrowed_pool_the_rest_counts_neither_as_near_nor_as_dense(situation: Given, tmp_path: Path) -> None:
    left = np.arange(0, 100)
    small = given(numbered(["text"] * 150, FIRST).narrowed(IDS[left]), vectors=situation.vectors, permitted=IDS[left])
    alone = given(numbered(["text"] * 100, FIRST), vectors=embedded(tmp_path / "alone", POOL[left], IDS[left], TARGET))
    np.testing.assert_allclose(scored(small)[1], scored(alone)[1])
