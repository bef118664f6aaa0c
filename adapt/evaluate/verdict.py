"""Says in one sentence on which texts and tasks a new model is better than its initial model.

A difference counts only if its 95% interval excludes 0. `fix_of_worse` names what to change after a training run that
made the model worse on the text that it was trained on. `ChosenStep` describes a model that was chosen among several
steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from adapt.config import TrainingConfig
from adapt.show.blocks import TextBlock, joined_names
from adapt.train.stopping import (
    DEV,
    OTHER_DEV,
    Point,
    exported_point,
    has_budget,
    is_loss,
    metric_words,
    within_budgets,
)

Effect = Literal["better", "worse", "equal", "unknown"]
"""Effect on one text or task. `equal`: the interval of the change includes 0. `unknown`: there is no interval."""
LOWER_RATE = "Try a lower training.learning_rate"
"""Advice after a training run that made the model worse, if the cause is not known."""
MOST_NAMES = 4
"""Maximum number of texts and tasks that a clause of a verdict names."""
TENTH = 0.1
"""The mean loss of this share of a training run's reports at the start is compared with that at the end."""
REPEATED = 1.5
"""If a training run reads its text more often than this, the model may have memorized the text."""


def effect(low: float | None, high: float | None, higher_is_better: bool = False) -> Effect:
    """Returns the effect of a change, such as the change of a loss, from the change's 95% interval.

    Args:
        low: lower end of the interval of the value after minus the value before; None if there is no interval.
        high: upper end of the interval.
        higher_is_better: whether the value is a score, and not a loss.
    """
    if low is None or high is None:
        return "unknown"
    if low <= 0 <= high:
        return "equal"
    return "better" if (low > 0) == higher_is_better else "worse"


@dataclass(frozen=True)
class Verdict:
    """The effects of a training run or a merge on each text and task, compared with a reference model."""

    effects: Mapping[str, Effect]
    """Effect on each text or task, keyed by its name in sentences."""
    reference: str = "the model it started from"
    """The model that the new model is compared with."""
    model: str = ""
    """Name of the new model. Empty if only one model is judged."""
    lack: str = ""
    """Reason why nothing was measured. Empty if something was measured."""
    fix: str = ""
    """Advice if the training made the model worse on its own training text; else empty."""

    def on(self, wanted: Effect) -> list[str]:
        """Returns the names of the texts and tasks with the given effect."""
        return [name for name, found in self.effects.items() if found == wanted]

    @property
    def tone(self) -> Literal["better", "worse", "open"]:
        """Tone of the verdict: `worse` if the first text or task got worse, `better` if the first one got better."""
        tones: dict[str, Literal["better", "worse", "open"]] = {"better": "better", "worse": "worse"}
        return tones.get(next(iter(self.effects.values()), ""), "open")

    def clauses(self) -> str:
        """Returns the clauses of the sentence that states the verdict, without `Verdict:` and without the full stop."""
        better, worse, equal, unknown = (_named(self.on(of)) for of in ("better", "worse", "equal", "unknown"))
        said = []
        if better or worse:
            first = f"{'better' if better else 'worse'} than {self.reference} on {better or worse}"
            said.append(f"{first}{f', but worse on {worse}' if better and worse else ''}, beyond chance")
        if equal:
            of = "" if said else f" from {self.reference}"
            said.append(f"no difference beyond chance{of} on {equal}")
        if unknown:
            said.append(f"undecided on {unknown}, for which there is no 95% interval")
        return "; ".join(said) or f"not measured, because {self.lack or 'nothing was compared'}"

    def sentence(self) -> str:
        """Returns the verdict as one sentence."""
        of = f"{self.model} is " if self.model and not self.clauses().startswith(("no ", "not ")) else ""
        fix = f" {self.fix}." if self.fix else ""
        return f"Verdict: {of or (f'{self.model}: ' if self.model else '')}{self.clauses()}.{fix}"

    def block(self) -> TextBlock:
        """Returns the verdict as the first paragraph of a shown result. Terminals repeat it below the details."""
        return TextBlock(self.sentence(), is_summary=True, is_verdict=True)


@dataclass(frozen=True)
class ChosenStep:
    """The step whose model was exported because its measurement was the best (`training.keep: best`).

    The best of m equally good measurements looks better than it is, by about sigma sqrt(2 ln m) for a standard error of
    sigma. Measurements of another sample, which was not used for the choice, have no such bias.
    """

    step: int
    """Step of the exported model."""
    last_step: int
    """Last step of the training."""
    points: int
    """Number of measurements among which the step was chosen: those within the forgetting budget, if there is one."""
    metric: str
    """Name of the metric by which the step was chosen, such as `domain_loss`."""
    before: float
    """Value of the metric before the first step, on the sample that was used to choose the step."""
    after: float
    """Value of the metric at the chosen step, on the sample that was used to choose the step."""
    other_before: float | None = None
    """Value of the metric before the first step, on another sample. None if no other sample was measured."""
    other_after: float | None = None
    """Value of the metric at the chosen step, on another sample. None if no other sample was measured."""
    has_budget: bool = False
    """Whether the training had a forgetting budget."""

    def sentence(self) -> str:
        """Returns a sentence with the chosen step, and the metric before training and at this step."""
        many, what = (1, "documents") if is_loss(self.metric) else (100, "dev examples")
        form, budget = ".3f" if many == 1 else ".1f", " (within the forgetting budget)" if self.has_budget else ""
        said = (
            f"The exported model is that of step {self.step:,} of {self.last_step:,}, the best of {self.points}"
            f" measurements{budget} of {metric_words(self.metric)}, which went from {many * self.before:{form}} to"
            f" {many * self.after:{form}} on the {what} used for this choice"
        )
        if self.other_before is None or self.other_after is None:
            return f"{said}. It was not measured on other {what}, so this figure is optimistic."
        others = f"from {many * self.other_before:{form}} to {many * self.other_after:{form}} on other {what}"
        return f"{said}, and {others}."


def choice_of(
    points: Sequence[Point], training: TrainingConfig, others: Mapping[str, tuple[float, float]]
) -> ChosenStep | None:
    """Returns the step whose model was exported as the best, or None without `training.keep: best`.

    Args:
        points: the measurements of the training.
        training: settings of the training.
        others: losses before and after the training on documents that were not used for the choice, keyed by metric.
            Scores of probes are not needed, because probes measure the other half of the dev split themselves.
    """
    chosen = exported_point(points, training)
    if chosen is None or training.keep != "best":
        return None
    first, best, metric = points[0].figures, points[chosen].figures, training.keep_metric
    other = metric.replace(f".{DEV}", f".{OTHER_DEV}")
    pair = (first[other], best[other]) if other != metric else others.get(metric, (None, None))
    return ChosenStep(
        step=points[chosen].step,
        last_step=points[-1].step,
        points=max(1, len(within_budgets(points, training))),
        metric=metric,
        before=first[metric],
        after=best[metric],
        other_before=pair[0],
        other_after=pair[1],
        has_budget=has_budget(training),
    )


def _named(names: Sequence[str]) -> str:
    """Joins names with commas and `and`. Of many names, only the first MOST_NAMES are listed."""
    more = len(names) - MOST_NAMES
    shown = [*names[:MOST_NAMES], f"{more} more"] if more > 1 else [*names]
    return joined_names(shown)


def fix_of_worse(
    training: TrainingConfig, reports: Sequence[Mapping[str, Any]], passes: float | None, new_parts: str = ""
) -> str:
    """Returns advice after a training run that raised the held-out loss of its own text.

    The training loss shows the cause. If it rose too, the learning rate is too high. If it fell while the text was read
    several times, the model memorized the text.

    Args:
        training: settings of the training.
        reports: the lines of the training's `metrics.jsonl`, with `step` and `loss`.
        passes: how often the text was read; None if that is not known.
        new_parts: parts of the model that began with random weights, such as `a random head`; empty if there are none.
    """
    rate = training.learning_rate
    losses = [float(report["loss"]) for report in reports if report.get("loss") is not None]
    few = max(1, round(TENTH * len(losses)))
    begin, end = (fmean(losses[:few]), fmean(losses[-few:])) if len(losses) > 1 else (0.0, 0.0)
    if new_parts and end <= begin:
        return f"The model began with {new_parts}, which needs more steps: raise training.max_steps or training.epochs"
    if end < begin and passes is not None and passes > REPEATED:
        return (
            f"The training loss fell from {begin:.2f} to {end:.2f} while the text was read {passes:.1f} times, so the"
            " model memorized the text: lower training.epochs or training.max_steps, or add text"
        )
    if end > begin:
        lower = f"such as {rate / 10:.1g} instead of {rate:g}"
        return f"The training loss rose too, from {begin:.2f} to {end:.2f}: try a lower training.learning_rate, {lower}"
    return f"{LOWER_RATE}, such as {rate / 3:.1g} instead of {rate:g}"
