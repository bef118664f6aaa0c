"""Proposes the values of each trial from the search's seed, the trial's number and the results of earlier trials.

Proposals depend on nothing else, so a search proposes the same values on any machine, even after interruptions.
Finished stages are found by their keys and do not run again. The searcher `tpe` is Optuna's tree-structured Parzen
estimator (Bergstra et al. 2011).

With only one objective, the best trial on a domain is often the trial that forgot most. A bound (`tune.bound`) is a
limit for a second metric, such as forgetting. The best trial is then the best among the trials that meet the bound.

A scheduler divides trials into turns. After each turn, a trial is measured, and Ray Tune's scheduler may end it. Turns
need the learning-rate schedule `wsd`, which ends with a cooldown. Each turn is a separate training run that is longer
than the run of the previous turn. It starts from the state that the previous run had before its cooldown.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np

from adapt.config import BoundConfig, Config, TuneConfig
from adapt.evaluate.measurements import Estimate
from adapt.support.errors import ConfigError, nearest

Space = Mapping[str, Any]
"""A search space: the range or list of values for each field, as a `Domain` of Ray Tune, keyed by dotted field name."""
Values = dict[str, Any]
"""The values of the searched fields in a trial, keyed by dotted field name."""
Results = Sequence[Sequence[float] | None]
"""For each finished trial, in the order of trial numbers, the values of all objectives; None for a failed trial. With
`tune.bound`, the last value is the excess over the bound (`adapt.tuning.proposals`)."""


@dataclass(frozen=True)
class Proposals:
    """The proposals of a searcher: the number of trials, and a function that returns the values of each trial."""

    count: int
    """Number of trials."""
    propose: Callable[[Sequence[Values], Results], Values]
    """Function that returns the values of the next trial. Its arguments are the values of all earlier trials, and the
    results of those earlier trials that must have finished (see `told`)."""
    lag: int | None
    """How many of the most recent trials a proposal ignores, because these trials may still be running. None if
    proposals use no results."""

    def told(self, number: int) -> int:
        """Returns how many trials, in order, must have results before trial `number` (counted from 0) is proposed."""
        return 0 if self.lag is None else max(0, number - self.lag)


def proposals(space: Space, tune: TuneConfig, lower_is_better: Sequence[bool]) -> Proposals:
    """Returns the proposals of the configured searcher.

    Raises:
        ConfigError: a grid has a range instead of a list, or more combinations than `tune.samples`; or Optuna is not
            installed.
    """
    if tune.searcher == "grid":
        return _grid(space, tune)
    if tune.searcher == "random":
        return Proposals(tune.samples, lambda proposed, known: _drawn(space, tune.seed, len(proposed)), None)

    check_optuna()
    return Proposals(
        tune.samples,
        lambda proposed, known: tpe(
            space, tune.seed, lower_is_better, proposed, penalised(known, lower_is_better) if tune.bound else known
        ),
        tune.at_once - 1,
    )


def draw(domain: Any, generator: Any) -> Any:
    """Draws a random value from the search domain of a field, and returns the value as a plain Python type."""
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
            f"{name} has a range of values, but tune.searcher grid needs a list of values",
            "list values in the space, or set tune.searcher to random",
        )
    return categories


def check_optuna() -> None:
    """Checks that Optuna is installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("tune.searcher tpe needs Optuna", "pip install 'dontstop[optuna]'")


def tpe(
    space: Space,
    seed: int,
    lower_is_better: Sequence[bool],
    proposed: Sequence[dict[str, Any]],
    known: Sequence[Sequence[float] | None],
) -> dict[str, Any]:
    """Returns the values that Optuna proposes for the next trial.

    Optuna's study is rebuilt from the earlier trials at each call, so the result depends only on the arguments.

    Args:
        space: the domains of the searched fields.
        seed: seed of the search.
        lower_is_better: for each objective, whether lower values are better.
        proposed: the values of all earlier trials.
        known: results of the first trials in `proposed`: the values of the objectives, or None for a failed trial. The
            remaining trials are still running.
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


EXCESS = "(excess over the bound)"
"""Name of an additional result of each trial for the searcher: how far the trial exceeds the bound."""


def excess_of(bound: BoundConfig, figures: Mapping[str, Estimate], lower_is_better: bool) -> float:
    """Returns how far a trial exceeds the bound, in the unit of the bound's metric; 0 if the trial meets the bound."""
    value = figures[bound.metric].value
    return max(0.0, value - bound.limit if lower_is_better else bound.limit - value)


def penalised(known: Sequence[Sequence[float] | None], lower_is_better: Sequence[bool]) -> list[Sequence[float] | None]:
    """Gives each trial that exceeds the bound objective values that are worse than those of all other trials.

    The more a trial exceeds the bound, the worse its values. A searcher that learns from the ranking of trials, such
    as TPE, then prefers trials that meet the bound. Among trials that exceed the bound, it prefers those nearest to the
    bound.

    Args:
        known: for each trial, the values of its objectives, followed by its excess over the bound; None for a failed
            trial.
        lower_is_better: for each objective, whether lower values are better.

    Returns:
        The values of the objectives of each trial, without the excess.
    """
    meeting = [values[:-1] for values in known if values is not None and not values[-1]] or [
        [0.0] * len(lower_is_better)
    ]
    worst = [
        (max if lower else min)(values[place] for values in meeting) for place, lower in enumerate(lower_is_better)
    ]
    signs = [1.0 if lower else -1.0 for lower in lower_is_better]
    return [
        values
        if values is None
        else values[:-1]
        if not values[-1]
        else [end + sign * values[-1] for end, sign in zip(worst, signs, strict=True)]
        for values in known
    ]


def check_bound(config: Config, ways: Mapping[str, int]) -> None:
    """Refuses a bound on a metric that trials do not report, or of which it is not known whether lower is better.

    Args:
        config: the unchanged configuration.
        ways: for each metric of the job's result, whether higher or lower is better, as returned by
            `adapt.support.better.better_directions`.
    """
    tune = config.tune
    if tune.bound is None:
        return
    name = tune.bound.metric
    if name not in ways or not ways[name]:
        known = sorted(figure for figure, way in ways.items() if way)
        raise ConfigError(
            f"tune.bound: this job reports no metric {name}, or does not declare whether higher or lower values of the"
            " metric are better",
            nearest(name, known),
        )
    if name.startswith(("losses.general", "general")) and not config.evaluation.general_paths:
        raise ConfigError(f"tune.bound: {name} needs general text", "set evaluation.general_paths")
    if tune.scheduler != "none":
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} stops trials early by their first objective, but tune.bound is only"
            " checked at the end of a trial",
            "set tune.scheduler to none, or leave tune.bound out",
        )


STEPS = "training.max_steps"
LENGTHS = (STEPS, "training.max_tokens", "training.max_flops", "training.epochs")
"""Fields that set the length of a training run."""


def lengths_of(tune: TuneConfig) -> list[int]:
    """Returns the length of a trial at each measurement, in multiples of the length at the first measurement."""
    return [tune.reduction**turn for turn in range(tune.turns)] if tune.scheduler != "none" else [1]


def steps_after(config: Config, turn: int) -> int | None:
    """Returns the number of steps of a trial up to measurement `turn` (counted from 0), or None without a scheduler."""
    if config.tune.scheduler == "none":
        return None
    assert config.training.max_steps
    lengths = lengths_of(config.tune)
    return ceil(config.training.max_steps * lengths[turn] / lengths[-1])


def check_turns(config: Config, fields: Iterable[str]) -> None:
    """Checks that the training run of a trial can continue after each measurement."""
    tune, training = config.tune, config.training
    if tune.scheduler == "none":
        return
    if training.phases:
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} compares trials before their end, which is not possible with"
            " training.phases",
            "set tune.scheduler to none, or leave training.phases out",
        )
    if training.schedule != "wsd" or training.warmup_steps is None or training.max_steps is None:
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} compares trials before their end, but this training run cannot continue"
            " after a comparison",
            f"set training.schedule to wsd, and set training.warmup_steps and {STEPS}",
        )
    for name in fields:
        if name in LENGTHS or name in ("training.schedule", "training.warmup_steps", "training.warmup_fraction"):
            raise ConfigError(
                f"{name} cannot be searched while tune.scheduler compares trials by their number of steps",
                f"remove {name} from the space",
            )
    first = steps_after(config, 0)
    if tune.reduction < 2 or tune.turns < 2:
        raise ConfigError(
            "tune.scheduler needs at least two measurements of a trial, after different numbers of steps",
            "set tune.turns and tune.reduction to 2 or more",
        )
    if first is not None and first <= training.warmup_steps:
        raise ConfigError(
            f"the first measurement of a trial (tune.turns) is after {first} steps, but training.warmup_steps is"
            f" {training.warmup_steps}",
            "lower tune.turns or training.warmup_steps, or raise training.max_steps",
        )
