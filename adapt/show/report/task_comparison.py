"""Compares every recipe with the baseline, by task and on average, and describes the results and costs in sentences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapt.runner.record import Record
from adapt.show.blocks import METRICS, FindingBlock
from adapt.show.report.look_texts import comparison_at, ending_text
from adapt.show.report.study import Entry, Study
from adapt.show.report.study_results import Results, Row, RunGroup
from adapt.statistics.comparison import (
    SAMPLES,
    Comparison,
    average_over_tasks,
    compare,
    conclusion,
    equivalence_p,
    holm,
    points,
    significant,
    verdict,
)
from adapt.statistics.outcomes import Tested
from adapt.statistics.seeds import MARGIN, Conclusion, Ending, endings

WORDS = {"better": "better", "worse": "worse", "equal": "equal", "open": "undecided"}
"""Words for the conclusions of comparisons in tables."""


@dataclass(frozen=True)
class RecipeCompared:
    """A comparison of a recipe with the baseline.

    The p value is corrected for the number of recipes that are compared on the same task.
    """

    comparison: Comparison
    adjusted: float | None
    recipes: int = 1
    """Number of recipes that were compared on the same task."""
    margin: float = MARGIN.share
    """Equivalence margin: smaller differences count as equal. In the unit of the difference."""
    ending: Ending | None = None
    """The look (interim analysis) of a sequential study at which the comparison ended, or the latest look. The
    comparison then has the repeated interval of this look. None for other studies."""
    better: int = 1
    """1 if a higher value is better, -1 if a lower value is better."""
    equal: float | None = None
    """Corrected `equivalence_p`. None in sequential studies, or if the interval is unknown."""

    @property
    def significant(self) -> bool:
        """Whether the corrected p is below .05, or the look of a sequential study found a difference."""
        if self.ending:
            return self.ending.seen.conclusion in ("better", "worse")
        return significant(self.comparison, self.adjusted)

    @property
    def ended(self) -> Conclusion:
        """Conclusion of the comparison, such as `better` or `equal`."""
        if self.ending:
            return self.ending.seen.conclusion
        return conclusion(self.comparison, self.margin, self.adjusted, self.better, self.equal)


@dataclass(frozen=True)
class Compared:
    """All comparisons of a study."""

    tasks: dict[tuple[str, str], RecipeCompared]
    """The comparison of each recipe in each row (task and swept values), keyed by the names of row and recipe."""
    average: dict[str, RecipeCompared]
    """Average comparison of each recipe over the rows that both the recipe and the baseline have.

    There are no averages if a task has several rows. Such rows share test examples, but averages need independent
    tasks. A sequential study has no averages either, because its results decide how many seeds a task has.
    """
    shared: dict[str, int]
    """Number of rows that each recipe shares with the baseline."""


def compare_all(results: Results, without_leaks: bool = False) -> Compared:
    """Compares all recipes with the baseline. Without a baseline, the result is empty.

    In a sequential study, the comparisons come from its looks, which use all test examples.
    """
    if results.looks is not None:
        return Compared({} if without_leaks else _at_looks(results), {}, {})
    tasks: dict[tuple[str, str], RecipeCompared] = {}
    if results.baseline:
        for row in results.rows:
            for recipe, compared in _of_row(row, results, without_leaks).items():
                tasks[row.name, recipe] = compared
    by_recipe = {
        recipe: [tasks[row.name, recipe].comparison for row in results.rows if (row.name, recipe) in tasks]
        for recipe in results.recipes
        if any(name == recipe for _, name in tasks)
    }
    apart = len({row.task for row in results.rows}) == len(results.rows)
    pooled = {recipe: average_over_tasks(comparisons) for recipe, comparisons in by_recipe.items() if apart}
    shared = {recipe: len(comparisons) for recipe, comparisons in by_recipe.items()}
    return Compared(tasks, corrected(pooled, results.margin), shared)


def _at_looks(results: Results) -> dict[tuple[str, str], RecipeCompared]:
    """Returns the comparison at the latest look for each recipe in each row that has runs."""
    rows = {row.name for row in results.rows}
    return {
        (row, recipe): recipe_at_look(ending)
        for (row, _, recipe), ending in endings(results.looks or ()).items()
        if row in rows and recipe in results.recipes
    }


def recipe_at_look(ending: Ending) -> RecipeCompared:
    """Returns a comparison as the latest look of a sequential study found it."""
    return RecipeCompared(comparison_at(ending), None, ending.looked.recipes, ending.looked.margin, ending)


def _of_row(row: Row, results: Results, without_leaks: bool) -> dict[str, RecipeCompared]:
    return corrected(row_comparisons(row, results, without_leaks), results.margin)


def row_comparisons(
    row: Row, results: Results, without_leaks: bool = False, samples: int = SAMPLES
) -> dict[str, Comparison]:
    """Compares the recipes of a row with the baseline, without correction. Without a baseline, the result is empty.

    Args:
        row: the row.
        results: all results, which name the baseline.
        without_leaks: whether examples that occur in the training text are left out.
        samples: number of resamples of each comparison.
    """
    baseline = row.groups.get(results.baseline or "")
    if baseline is None:
        return {}
    others = [row.groups[recipe] for recipe in results.recipes if recipe in row.groups and recipe != baseline.recipe]
    sides = {other.recipe: _sides(other, baseline, without_leaks) for other in others}
    return {recipe: compare(*both, samples) for recipe, both in sides.items()}


def _sides(recipe: RunGroup, baseline: RunGroup, without_leaks: bool) -> tuple[Tested, Tested]:
    """Returns the results of recipe and baseline.

    Predictions are left out if the two sides' predictions are for different examples.
    """
    sides = recipe.tested(without_leaks), baseline.tested(without_leaks)
    if recipe.predictions.ids == baseline.predictions.ids:
        return sides
    return Tested(sides[0].scores), Tested(sides[1].scores)


def corrected(comparisons: Mapping[str, Comparison], margin: float) -> dict[str, RecipeCompared]:
    """Corrects the p values of several comparisons with one baseline for the number of comparisons.

    Tests for a difference and tests that no difference matters are corrected as two families.

    Args:
        comparisons: the comparisons, keyed by recipe.
        margin: largest difference that does not matter, in the unit of the differences.
    """
    tested = {recipe: comparison.p for recipe, comparison in comparisons.items() if comparison.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    near = {recipe: equivalence_p(comparison, margin) for recipe, comparison in comparisons.items()}
    near_known = {recipe: p for recipe, p in near.items() if p is not None}
    equal = dict(zip(near_known, holm(list(near_known.values())), strict=True))
    return {
        recipe: RecipeCompared(comparison, adjusted.get(recipe), len(tested), margin, equal=equal.get(recipe))
        for recipe, comparison in comparisons.items()
    }


@dataclass(frozen=True)
class Cost:
    """Cost of pre-training. A value is None if the study lacks the record of a training stage."""

    device_hours: float | None
    money: float | None


class Trainings:
    """The exports of a study, keyed by the key of their training stage."""

    def __init__(self, study: Study) -> None:
        exports = (entry for entry in study.entries if entry.record.stage == "export")
        self.exports: dict[str, Entry] = {entry.record.inputs["training"]["key"]: entry for entry in exports}
        self.merges = {entry.record.key for entry in study.entries if entry.record.stage == "merge"}

    def cost(self, keys: Iterable[str]) -> Cost:
        """Sums the cost of the training stages with the given keys, each counted once. Merges cost nothing."""
        exports = [self.exports.get(key) for key in dict.fromkeys(keys) if key not in self.merges]
        records = [export.record if export else None for export in exports]
        return Cost(_sum(records, "device_hours"), _sum(records, "cost"))

    def of_recipe(self, results: Results, recipe: str) -> Cost:
        """Sums the cost of all training stages that a recipe needs for all tasks."""
        return self.cost(key for row in results.rows if recipe in row.groups for key in row.groups[recipe].trained)

    def general_change(self, group: RunGroup) -> float | None:
        """Returns how the loss on general text changes over all training stages together [nats per token]."""
        exports = [self.exports.get(key) for key in group.trained]
        if not exports or exports[0] is None or exports[-1] is None:
            return None
        first, last = (export.result.losses.get("general") for export in (exports[0], exports[-1]))
        return None if first is None or last is None else float(last.after.value - first.before.value)

    def general_changes(self, results: Results, recipe: str) -> list[float]:
        """Lists the known changes of the loss on general text, one per model of a recipe."""
        groups = [row.groups[recipe] for row in results.rows if recipe in row.groups]
        changes = {group.trained: self.general_change(group) for group in groups}
        return [change for change in changes.values() if change is not None]


def finetuning_hours(group: RunGroup) -> float | None:
    """Sums the device-hours of fine-tuning over all seeds. Returns None if the time of one seed is unknown."""
    seconds = [entry.record.cost.get("device_seconds") for entry in group.entries]
    known = [spent for spent in seconds if spent is not None]
    return sum(known) / 3600 if len(known) == len(seconds) else None


def hours(value: float | None, of: str = "") -> str:
    """Formats a time as `0.8 hours`, or as `4 minutes` below 0.1 hours.

    The text `of`, such as `device-`, precedes the unit.
    """
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    return f"{value:,.{0 if value >= 10 else 1}f} {of}hours" if value >= 0.1 else f"{value * 60:.2g} {of}minutes"


def _sum(records: list[Record | None], name: str) -> float | None:
    values = [record.cost.get(name) if record else None for record in records]
    known = [float(value) for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def verdicts(results: Results, compared: Compared, trainings: Trainings) -> list[FindingBlock]:
    """Makes findings that name the best recipe, first over all tasks if there are several, then for each task."""
    if not results.rows:
        return [FindingBlock("Nothing to judge yet", "No fine-tuning run has finished.")]
    if not compared.tasks:
        return [FindingBlock("No comparison", _why_none(results)), *(_best_alone(row, results) for row in results.rows)]
    overall = [_overall(results, compared, trainings)] if len(results.rows) > 1 and compared.average else []
    return [*overall, *(_of_task(row, results, compared, trainings) for row in results.rows)]


def _why_none(results: Results) -> str:
    if results.baseline is None:
        return "There is no finished run of the baseline, so scores are shown and differences are not."
    if results.looks is not None and not results.looks:
        return "The first look (interim analysis) of this sequential study has not happened yet."
    return f"Only the baseline, {results.baseline}, has finished."


def _best_alone(row: Row, results: Results) -> FindingBlock:
    best = max(row.groups.values(), key=lambda group: group.tested().scores.mean())
    score = 100 * best.tested().scores.mean()
    return FindingBlock(
        row.name, f"Highest mean score: {results.label(best.recipe)}, {score:.1f} {METRICS[row.metric]}."
    )


def _overall(results: Results, compared: Compared, trainings: Trainings) -> FindingBlock:
    """Makes the finding about the recipe with the largest average gain, among the recipes with the most tasks."""
    most = max(compared.shared.values())
    gains = {
        recipe: average.comparison.difference
        for recipe, average in compared.average.items()
        if compared.shared[recipe] == most
    }
    best = max(gains, key=lambda recipe: gains[recipe])
    average = compared.average[best]
    tasks = f"points on average over {most} tasks" if most > 1 else "points on the one task it shares with the baseline"
    text = _sentence(average, tasks)
    price = _price(trainings.of_recipe(results, best), trainings.general_changes(results, best))
    return FindingBlock(f"Overall: {results.label(best)}", f"{text}{price}.", average.ended)


def _of_task(row: Row, results: Results, compared: Compared, trainings: Trainings) -> FindingBlock:
    by_recipe = {
        recipe: compared.tasks[row.name, recipe] for recipe in row.groups if (row.name, recipe) in compared.tasks
    }
    if not by_recipe:
        return _best_alone(row, results)
    best = max(by_recipe, key=lambda recipe: by_recipe[recipe].comparison.difference)
    group = row.groups[best]
    change = trainings.general_change(group)
    price = _price(trainings.cost(group.trained), [] if change is None else [change])
    text = _sentence(by_recipe[best], f"{METRICS[row.metric]} on {row.name}")
    return FindingBlock(f"{row.name}: {results.label(best)}", f"{text}{price}.", by_recipe[best].ended)


def _sentence(compared: RecipeCompared, unit: str) -> str:
    if compared.ending:
        return ending_text(compared.ending, points, unit)
    text = verdict(compared.comparison, compared.adjusted, unit, compared.recipes, compared.margin, compared.equal)
    if compared.ended == "worse":
        text = f"worse than the baseline, although the best of the other recipes: {text}"
    return text[0].upper() + text[1:]


def _price(cost: Cost, changes: list[float]) -> str:
    parts = []
    if cost.device_hours is not None:
        parts.append(f"cost {hours(cost.device_hours, 'device-')}")
    if changes:
        parts.append(f"change of the loss on general text {span(changes)} nats per token")
    return "".join(f"; {part}" for part in parts)


def span(changes: list[float]) -> str:
    """Formats a change of loss as `+0.21`, or the range of several changes as `+0.02 to +0.05`."""
    return " to ".join(dict.fromkeys([nats(min(changes)), nats(max(changes))]))


def nats(change: float, digits: int = 2) -> str:
    """Formats a change of loss with its sign."""
    text = f"{change:+.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text[1:]


def gain(compared: RecipeCompared) -> str:
    """Formats a difference from the baseline, followed by stars if it is significant."""
    return points(compared.comparison.difference) + stars(compared)


def stars(compared: RecipeCompared | None) -> str:
    """Returns `*` for a corrected p below .05, `**` below .01, and otherwise an empty text.

    A difference that a look of a sequential study found has one star.
    """
    if compared and compared.ending:
        return "*" if compared.significant else ""
    if compared is None or not compared.significant or compared.adjusted is None:
        return ""
    return "**" if compared.adjusted < 0.01 else "*"
