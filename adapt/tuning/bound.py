"""The bound of a search (`tune.bound`): a condition on a second figure, which the best trial must meet.

With only one objective, the best trial for a domain is often the trial that forgot most. With a bound, the best trial
is the best one among those that forget little enough.
"""

from collections.abc import Mapping, Sequence

from adapt.config import BoundConfig, Config
from adapt.evaluate.measurements import Estimate
from adapt.support.errors import ConfigError, nearest

EXCESS = "(excess over the bound)"
"""Name of a trial's excess among its results for the searcher."""


def excess_of(bound: BoundConfig, figures: Mapping[str, Estimate], lower_is_better: bool) -> float:
    """Returns by how much a trial is beyond the bound, in the unit of the bound's figure; 0 if it meets the bound.

    Args:
        bound: the bound.
        figures: the trial's figures, keyed by name.
        lower_is_better: whether lower values of the bound's figure are better.
    """
    value = figures[bound.metric].value
    return max(0.0, value - bound.limit if lower_is_better else bound.limit - value)


def penalised(known: Sequence[Sequence[float] | None], lower_is_better: Sequence[bool]) -> list[Sequence[float] | None]:
    """Replaces the objectives of trials beyond the bound by values that are worse than those of all others.

    The farther a trial is beyond the bound, the worse its values. A searcher that learns from the order of trials, such
    as TPE, then prefers trials that meet the bound, and among the others those nearest to it.

    Args:
        known: for each trial, its objectives and then its excess over the bound; None for a failed trial.
        lower_is_better: for each objective, whether lower values are better.

    Returns:
        The objectives of each trial, without the excess.
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
    """Refuses a bound on a figure that trials do not report, or whose better direction is not known.

    Args:
        config: the unchanged configuration.
        ways: better direction of each figure of the job's result, as `adapt.support.better.better_directions`.

    Raises:
        ConfigError: the bound is refused. The message names the nearest figure, or what the bound needs.
    """
    tune = config.tune
    if tune.bound is None:
        return
    name = tune.bound.metric
    if name not in ways or not ways[name]:
        known = sorted(figure for figure, way in ways.items() if way)
        raise ConfigError(f"tune.bound: this job reports no {name} that is better on one side", nearest(name, known))
    if name.startswith(("losses.general", "general")) and not config.evaluation.general_paths:
        raise ConfigError(f"tune.bound: {name} needs general text", "set evaluation.general_paths")
    if tune.scheduler != "none":
        raise ConfigError(
            f"tune.scheduler {tune.scheduler} stops trials by their first objective before their end, where tune.bound"
            " does not hold yet",
            "set tune.scheduler to none, or leave tune.bound out",
        )
