"""Finds merge methods by their names in `merge.kind`, and reads the options of a merge from a configuration."""

import math
from collections.abc import Sequence

from adapt.config import Config, MergeConfig
from adapt.config.kinds import Kinds
from adapt.merge.merger import Average, Merger, Merging, decay_weights
from adapt.support.errors import ConfigError

MERGERS: Kinds[type[Merger]] = Kinds(
    "merge.kind",
    {
        "interpolate": "adapt.merge.merger:Interpolate",
        "average": "adapt.merge.merger:Average",
        "task_arithmetic": "adapt.merge.merger:TaskArithmetic",
        "ties": "adapt.merge.merger:Ties",
        "dare": "adapt.merge.merger:Dare",
        "residual": "adapt.merge.merger:Residual",
    },
)
"""Merge methods, keyed by name. To add a method, also add its name to `adapt.config.MergeConfig`."""


def merging_of(config: Config, models: int) -> Merging:
    """Returns the options of a merge of this many models. Options that are not set get the merge method's defaults.

    Raises:
        ConfigError: a field does not fit the merge method or the number of models, or is out of its range.
    """
    section, kind = config.merge, MERGERS.load(config.merge.kind)
    fewest, most = kind.models
    if models < fewest or (most is not None and models > most):
        wanted = f"{fewest} or more" if most is None else str(fewest)
        raise ConfigError(
            f"merge.kind {section.kind} takes {wanted} {'model' if wanted == '1' else 'models'}, but merge.models has"
            f" {models}",
            "list the models to merge in merge.models; the base is model.path",
        )
    return Merging(
        kind=section.kind,
        shares=_shares(section, kind),
        weights=_weights(section, kind, models),
        density=_density(section, kind),
        seed=config.seed,
    )


def _shares(section: MergeConfig, kind: type[Merger]) -> tuple[float, ...]:
    shares = tuple(kind.shares if section.shares is None else map(float, section.shares))
    folders = [f"{share:g}" for share in shares]
    if not shares or len(set(folders)) < len(shares):
        raise ConfigError(
            f"merge.shares is {list(shares)}: the list is empty, or a share is repeated",
            "list at least one share; shares must differ in their first 6 digits",
        )
    for share in shares:
        if not math.isfinite(share):
            raise ConfigError(f"merge.shares: {share} is not a finite number", "use numbers from 0 to 1")
        if not (0 <= share <= 1 or section.extrapolate):
            raise ConfigError(
                f"merge.shares: {share:g} is not between 0 and 1, the full merge",
                "use a number from 0 to 1, or set merge.extrapolate to true to extrapolate beyond the full merge",
            )
    return shares


def _weights(section: MergeConfig, kind: type[Merger], models: int) -> tuple[float, ...]:
    given = section.weights
    if not kind.is_weighted:
        if given is not None:
            raise ConfigError(
                f"merge.weights is set, but merge.kind {section.kind} uses no weights", "remove merge.weights"
            )
        return ()
    if isinstance(given, str):
        if kind is not Average:
            raise ConfigError(
                f"merge.weights is {given}, but merge.kind is {section.kind}",
                "list one number per model; only merge.kind average accepts the name of a decay",
            )
        return decay_weights(given, models)
    weights = (1.0,) * models if given is None else tuple(map(float, given))
    _check_weights(weights, section.kind, kind.can_subtract, models)
    return weights


def _check_weights(weights: Sequence[float], kind: str, can_subtract: bool, models: int) -> None:
    if len(weights) != models:
        raise ConfigError(
            f"merge.weights has {len(weights)} numbers, but there are {models} models", "list one number per model"
        )
    wrong = [weight for weight in weights if not math.isfinite(weight) or not (weight > 0 or can_subtract)]
    if wrong or not any(weights):
        raise ConfigError(
            f"merge.weights is {list(weights)}, which merge.kind {kind} cannot use",
            "use finite numbers that are not all 0" if can_subtract else "use finite numbers above 0",
        )


def _density(section: MergeConfig, kind: type[Merger]) -> float | None:
    if kind.density is None:
        if section.density is not None:
            raise ConfigError(
                f"merge.density is set, but merge.kind {section.kind} uses all differences from the base",
                "remove merge.density",
            )
        return None
    if section.density == 0:
        raise ConfigError(
            "merge.density is 0, which keeps no differences from the base", "use a number above 0, such as 0.2"
        )
    return kind.density if section.density is None else section.density
