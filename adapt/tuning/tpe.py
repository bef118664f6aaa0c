"""Searcher `tpe`: Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), also for several objectives."""

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from adapt.errors import ConfigError
from adapt.tuning.space import Space


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
    under_way = len(proposed) - len(known)
    for values, result in zip(proposed, [*known, *[()] * under_way], strict=True):
        study.add_trial(_told(values, result, domains))
    return dict(study.ask(domains).params)


def _told(values: dict[str, Any], result: Sequence[float] | None, domains: dict[str, Any]) -> Any:
    """A trial as Optuna knows it: with its objectives, none for one that is under way, or failed."""
    from optuna.trial import TrialState, create_trial

    state = TrialState.FAIL if result is None else TrialState.COMPLETE if result else TrialState.RUNNING
    return create_trial(params=values, distributions=domains, values=list(result) if result else None, state=state)
