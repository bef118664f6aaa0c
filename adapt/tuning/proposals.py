"""Which values a trial has: a function of the seed, the trial's number, and the results of the trials before.

So a search proposes the same values on any machine, however often it was interrupted. Finished stages are found by
their keys and cost nothing. Searcher `tpe` is Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).
"""

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from adapt.config import TuneConfig
from adapt.support.errors import ConfigError

Space = Mapping[str, Any]
"""Domains of Ray Tune (`ray.tune.search.sample.Domain`), by the dotted names of fields."""
Values = dict[str, Any]
"""The values of a trial, by dotted field."""
Results = Sequence[Sequence[float] | None]
"""[trials] The objectives of the trials that are known, in the order of their numbers; None for one that failed."""


@dataclass(frozen=True)
class Proposals:
    """A search as a function."""

    count: int
    """Trials."""
    propose: Callable[[Sequence[Values], Results], Values]
    """Gives the values of the next trial, from the values of all before, and the results of the first of them."""
    lag: int | None
    """The trials just before whose results it must not know, as they are under way; None where it needs none."""

    def told(self, number: int) -> int:
        """How many trials must have a result before the one of this number, counted from 0, is proposed."""
        return 0 if self.lag is None else max(0, number - self.lag)


def proposals(space: Space, tune: TuneConfig, lower_is_better: Sequence[bool]) -> Proposals:
    """The search that is configured.

    Args:
        space: to search.
        tune: settings.
        lower_is_better: of each objective.

    Raises:
        ConfigError: a grid over numbers that are not listed, or larger than the samples; or Optuna is not installed.
    """
    if tune.searcher == "grid":
        return _grid(space, tune)
    if tune.searcher == "random":
        return Proposals(tune.samples, lambda proposed, known: _drawn(space, tune.seed, len(proposed)), None)

    check_optuna()
    return Proposals(
        tune.samples,
        lambda proposed, known: tpe(space, tune.seed, lower_is_better, proposed, known),
        tune.at_once - 1,
    )


def draw(domain: Any, generator: Any) -> Any:
    """A value of a domain, as plain JSON.

    Args:
        domain: of a field.
        generator: of numpy.
    """
    value = domain.sample(random_state=generator)
    return value.item() if hasattr(value, "item") else value


def _drawn(space: Space, seed: int, number: int) -> Values:
    generator = np.random.default_rng([seed, number])
    return {name: draw(domain, generator) for name, domain in space.items()}


def _grid(space: Space, tune: TuneConfig) -> Proposals:
    listed: Mapping[str, Sequence[Any]] = {name: _listed(name, domain) for name, domain in space.items()}
    count = prod(len(values) for values in listed.values())
    if count > tune.samples:
        raise ConfigError(
            f"the grid has {count} combinations, but tune.samples is {tune.samples}",
            f"set tune.samples to {count}, list fewer values, or set tune.searcher to random",
        )
    combinations = [dict(zip(listed, values, strict=True)) for values in product(*listed.values())]
    return Proposals(count, lambda proposed, known: combinations[len(proposed)], None)


def _listed(name: str, domain: Any) -> Sequence[Any]:
    categories: Sequence[Any] | None = getattr(domain, "categories", None)
    if categories is None:
        raise ConfigError(
            f"{name} has a range of values, and tune.searcher grid takes lists",
            "list values in the space, or set tune.searcher to random",
        )
    return categories


def check_optuna() -> None:
    """Refuses to search without Optuna.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tune.searcher tpe needs Optuna", "pip install 'dontstop[optuna]'")


def tpe(
    space: Space,
    seed: int,
    lower_is_better: Sequence[bool],
    proposed: Sequence[dict[str, Any]],
    known: Sequence[Sequence[float] | None],
) -> dict[str, Any]:
    """The values of the next trial. The study is made anew of what is known, so nothing else is remembered.

    Args:
        space: to search.
        seed: of the search.
        lower_is_better: of each objective.
        proposed: the values of all trials before.
        known: [trials] the objectives of the first of them; None for one that failed. The others are under way.
    """
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    domains = OptunaSearch.convert_search_space(dict(space))
    (own,) = np.random.SeedSequence([seed, len(proposed)]).generate_state(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=int(own), constant_liar=True)
    way = optuna.study.StudyDirection
    directions = [way.MINIMIZE if lower else way.MAXIMIZE for lower in lower_is_better]
    study = optuna.create_study(directions=directions, sampler=sampler)
    states, under_way = optuna.trial.TrialState, len(proposed) - len(known)
    for values, result in zip(proposed, [*known, *[()] * under_way], strict=True):
        state = states.FAIL if result is None else states.COMPLETE if result else states.RUNNING
        objectives = list(result) if result else None
        study.add_trial(optuna.trial.create_trial(params=values, distributions=domains, values=objectives, state=state))
    return dict(study.ask(domains).params)
