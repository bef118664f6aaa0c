"""Tests that proposals depend only on the seed, the trial number and earlier results, and find a known optimum."""

from collections.abc import Callable
from math import log10
from typing import Any

import pytest
from ray import tune

from adapt.config import TuneConfig
from adapt.support.errors import ConfigError
from adapt.tuning.proposals import Results, Values, proposals

SPACE = {"a.x": tune.loguniform(1e-4, 1e-1), "a.y": tune.choice([1, 2, 3])}
LISTED = {"a.x": tune.choice([0.1, 0.2]), "a.y": tune.choice([1, 2, 3])}


def loss(values: Values) -> float:
    """Returns a loss whose minimum is 0, at x = 0.01 and y = 2."""
    return (log10(values["a.x"]) + 2) ** 2 + abs(values["a.y"] - 2)


def searched(tune: TuneConfig, objective: Callable[[Values], float] = loss, space: Any = SPACE) -> list[Values]:
    asked = proposals(space, tune, [True])
    proposed: list[Values] = []
    results: list[list[float]] = []
    for number in range(asked.count):
        known: Results = results[: asked.told(number)]
        proposed.append(asked.propose(proposed, known))
        results.append([objective(proposed[-1])])
    return proposed


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_a_search_is_a_function_of_its_seed(searcher: Any) -> None:
    settings = TuneConfig(searcher=searcher, samples=8)
    assert searched(settings) == searched(settings)
    assert searched(settings) != searched(TuneConfig(searcher=searcher, samples=8, seed=1))


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_more_samples_begin_with_the_same_trials(searcher: Any) -> None:
    few, many = (searched(TuneConfig(searcher=searcher, samples=count)) for count in (5, 9))
    assert many[:5] == few


def test_a_grid_has_each_combination_once() -> None:
    found = searched(TuneConfig(searcher="grid", samples=6), lambda values: 0.0, LISTED)
    assert [tuple(values.values()) for values in found] == [(x, y) for x in (0.1, 0.2) for y in (1, 2, 3)]


def test_a_grid_larger_than_the_samples_or_over_ranges_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the grid has 6 combinations, but tune\.samples is 5"):
        proposals(LISTED, TuneConfig(searcher="grid", samples=5), [True])
    with pytest.raises(ConfigError, match=r"a\.x has a range of values"):
        proposals(SPACE, TuneConfig(searcher="grid"), [True])


def test_tpe_finds_a_known_optimum_that_random_draws_miss() -> None:
    best = {kind: min(map(loss, searched(TuneConfig(searcher=kind, samples=40)))) for kind in ("random", "tpe")}
    assert best["tpe"] < 0.01
    assert best["tpe"] < best["random"]


def test_tpe_uses_all_trials_that_are_not_running() -> None:
    asked = proposals(SPACE, TuneConfig(searcher="tpe", samples=9, at_once=3), [True])
    assert [asked.told(number) for number in range(5)] == [0, 0, 0, 1, 2]
    assert proposals(SPACE, TuneConfig(at_once=3), [True]).told(8) == 0


def test_tpe_learns_from_what_failed_and_goes_on() -> None:
    asked = proposals(SPACE, TuneConfig(searcher="tpe", samples=9), [True])
    proposed = searched(TuneConfig(searcher="tpe", samples=6))
    assert asked.propose(proposed, [None, [1.0], None]).keys() == SPACE.keys()


def test_tpe_takes_several_objectives() -> None:
    asked = proposals(SPACE, TuneConfig(searcher="tpe", samples=20, at_once=1), [True, False])
    proposed: list[Values] = []
    results: list[list[float]] = []
    for _ in range(15):
        proposed.append(asked.propose(proposed, results))
        results.append([loss(proposed[-1]), proposed[-1]["a.x"]])
    assert len({values["a.x"] for values in proposed}) == 15
