"""Decides at which measurement a training run ends early, and which model it then exports.

A training run is measured at points: before the first step, every `evaluation.interval_steps` steps, and after the last
step. Each decision is a function of all points so far. Therefore, it is the same on all ranks. It is also the same in a
resumed run, because checkpoints contain the points. This module loads no heavy library, because plans and reports use
it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapt.config import StopConfig, TrainingConfig
from adapt.support.errors import ConfigError

DOMAIN, GENERAL, PAST = "domain_loss", "general_loss", "past_loss"
"""Names of the loss on the domain, the loss on general text, and the mean loss on the earlier domains."""
DEV, OTHER_DEV = "dev_", "other_dev_"
"""Prefixes of the names of probes' scores; the name of the task follows. A score with the first prefix is on the half
of the dev examples that decides when a run ends and which model it exports. A score with the second prefix is on the
other half, for reports."""


@dataclass(frozen=True)
class Point:
    """The values of one measurement of the model."""

    step: int
    """Number of optimizer steps before the measurement, including steps of earlier phases."""
    figures: dict[str, float] = field(default_factory=dict)
    """The measured values, such as losses and scores, keyed by name."""


@dataclass(frozen=True)
class EarlyEnd:
    """Describes why and when a training run ended before its last step, and which model it exported."""

    step: int
    """Step at which the run ended."""
    exported_step: int
    """Step of the exported model."""
    metric: str
    """Name of the measured value that ended the run, such as `general_loss`."""
    limit: float
    """The limit that the forgetting budget sets, or the best value so far, on which later measurements did not
    improve."""
    rise: float | None = None
    """The forgetting budget: the allowed rise of the loss [nats per predicted token]. None if the run ended because the
    value stopped improving."""
    patience: int | None = None
    """Number of measurements without improvement. None if the run ended because of a forgetting budget."""


def is_loss(metric: str) -> bool:
    """Returns whether a measured value is a loss, so that lower is better. Scores of probes are not losses."""
    return f".{DEV}" not in metric and metric.partition(".")[0].endswith("_loss")


def keeps_earlier(training: TrainingConfig) -> bool:
    """Returns whether a training run may export the model of a step before the last step."""
    return training.keep == "best" or has_budget(training)


def exported_point(points: Sequence[Point], training: TrainingConfig) -> int | None:
    """Returns the index of the measurement whose model is exported if the run ends after the last measurement.

    A run with forgetting budgets exports the model of the last measurement that is within all budgets. The measurement
    before the first step is always within the budgets. With `training.keep: best`, a run exports the model of the best
    measurement within all budgets. If several measurements are equally good, it exports the first.

    Returns:
        The index. None if the run exports the model of its last step.
    """
    if not points or not keeps_earlier(training):
        return None
    within = within_budgets(points, training)
    if training.keep == "best" and within:
        sign = 1 if is_loss(training.keep_metric) else -1
        return min(within, key=lambda index: (sign * points[index].figures[training.keep_metric], index))
    return within[-1] if within else 0


def within_budgets(points: Sequence[Point], training: TrainingConfig) -> list[int]:
    """Returns the indices of the measurements that are within all forgetting budgets: all of them without budgets."""
    budgets = [rule for rule in training.rules if rule.rise is not None]
    return [index for index in range(len(points)) if all(_left(points[: index + 1], rule) is None for rule in budgets)]


def has_budget(training: TrainingConfig) -> bool:
    """Returns whether a training run has a forgetting budget."""
    return any(rule.rise is not None for rule in training.rules)


def early_end(points: Sequence[Point], training: TrainingConfig) -> EarlyEnd | None:
    """Returns how the run ends early after the last measurement. Returns None if the run continues."""
    for rule in training.rules:
        limit = _left(points, rule) if rule.rise is not None else _stalled(points, rule)
        if limit is not None:
            chosen = exported_point(points, training)
            exported = points[-1 if chosen is None else chosen].step
            return EarlyEnd(points[-1].step, exported, rule.metric, limit, rule.rise, rule.patience)
    return None


def _left(points: Sequence[Point], rule: StopConfig) -> float | None:
    """Returns the limit of a forgetting budget if the last value exceeds the limit or is NaN, else None."""
    limit = points[0].figures[rule.metric] + (rule.rise or 0.0)
    return None if points[-1].figures[rule.metric] <= limit else limit


def _stalled(points: Sequence[Point], rule: StopConfig) -> float | None:
    """Returns the best value if the last `patience` measurements did not improve on it by `minimum`, else None."""
    sign = 1 if is_loss(rule.metric) else -1
    best, since = None, 0
    for point in points:
        value = sign * point.figures[rule.metric]
        if best is None or value < best - rule.minimum:
            best, since = value, 0
        else:
            since += 1
    return sign * best if best is not None and rule.patience and since >= rule.patience else None


def check_rules(training: TrainingConfig, interval: int | None, metrics: Mapping[str, str]) -> None:
    """Refuses rules for values that are not measured, and rules that contradict other settings.

    Args:
        training: training settings.
        interval: number of steps between measurements (`evaluation.interval_steps`).
        metrics: for the name of each possible value, a text that says how to have it measured. The text is empty if the
            value is measured already.

    Raises:
        ConfigError: names the rule and the fix.
    """
    rules = training.rules
    decided = {"training.stop": bool(rules), "training.keep best": training.keep == "best"}
    for name, is_set in decided.items():
        if is_set and not interval:
            raise ConfigError(
                f"{name} is set, but nothing is measured while the model trains", "set evaluation.interval_steps"
            )
        if is_set and training.phases:
            raise ConfigError(
                f"{name} and training.phases are both set, but a phase continues from the end of the one before",
                "leave one of them out, or make the phases stages of a chain",
            )
    if training.keep == "best":
        _check_measured("training.keep_metric", training.keep_metric, metrics)
    for rule in rules:
        _check_measured("training.stop", rule.metric, metrics)
        if (rule.patience is None) == (rule.rise is None):
            both = "both" if rule.rise else "neither"
            raise ConfigError(
                f"training.stop: the rule of {rule.metric} must have either patience or rise, but has {both}",
                "set patience to stop when the metric no longer improves, or rise to limit how much the loss may rise",
            )
        if rule.rise is not None and not is_loss(rule.metric):
            raise ConfigError(f"training.stop: rise limits a loss, but {rule.metric} is not a loss", "set patience")
        if rule.rise is not None and rule.minimum:
            raise ConfigError(
                "training.stop: minimum works only with patience, but the rule has rise", "leave out minimum"
            )


def _check_measured(name: str, metric: str, metrics: Mapping[str, str]) -> None:
    measured = [known for known, missing in metrics.items() if not missing]
    if metric not in measured:
        others = f"choose one of {', '.join(measured)}" if measured else "see evaluation.interval_steps"
        raise ConfigError(f"{name}: {metric} is not measured", metrics.get(metric) or others)


def described(end: EarlyEnd | None, points: Sequence[Point]) -> list[str]:
    """Describes in sentences why a run ended early, which model it exported, and what a forgetting budget cost.

    Args:
        end: how the run ended early. None if it did not end early; the result is then empty.
        points: all measurements of the run.
    """
    if end is None:
        return []
    at = {point.step: point.figures for point in points}
    exported, stopped, name = at[end.exported_step], at[end.step], metric_words(end.metric)
    if end.rise is None:
        return [
            f"Training ended at step {end.step:,}, because {name} had not improved on {end.limit:.3f} in"
            f" {end.patience} measurements."
        ]
    rose = stopped[end.metric] - points[0].figures[end.metric]
    said = [
        f"Training ended at step {end.step:,}, because {name} had risen by {rose:.3f} nats per token, more than the"
        f" budget of {end.rise:g}. The exported model is that of step {end.exported_step:,}, the last measurement"
        " within the budget."
    ]
    if len(points) == 2:  # the measurement before the first step, and the measurement that exceeded the budget
        said.append(
            "This is the initial model, because the first measurement after the start exceeded the budget: lower"
            " training.learning_rate, or measure more often (evaluation.interval_steps)."
        )
    if DOMAIN in exported:
        cost = exported[DOMAIN] - stopped[DOMAIN]
        said.append(
            f"The budget cost {max(cost, 0):.3f} nats per token on the domain: its loss was {exported[DOMAIN]:.3f} at"
            f" step {end.exported_step:,} and {stopped[DOMAIN]:.3f} at step {end.step:,}, where the training ended."
        )
    return said


def kept(points: Sequence[Point], training: TrainingConfig) -> list[str]:
    """Says which model `training.keep: best` exports. Returns an empty list for runs without this option."""
    chosen = exported_point(points, training)
    if chosen is None or training.keep != "best":
        return []
    value, among = points[chosen].figures[training.keep_metric], max(1, len(within_budgets(points, training)))
    budget = " within the forgetting budget" if has_budget(training) else ""
    return [
        f"The model of step {points[chosen].step:,} is exported: of {among} measurements{budget}, it has the best value"
        f" of {metric_words(training.keep_metric)}, {value:.3f}."
    ]


def metric_words(metric: str) -> str:
    """Returns words for a measured value in a sentence, such as "the loss on the domain"."""
    known = {DOMAIN: "the loss on the domain", GENERAL: "the loss on general text", PAST: "the loss on earlier domains"}
    kind, _, name = metric.partition(".")
    return f"the loss on {name}" if kind == PAST and name else known.get(metric, metric)


def as_points(stored: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Converts measurements that were stored as plain values to points."""
    return [Point(int(each["step"]), dict(each["figures"])) for each in stored]
