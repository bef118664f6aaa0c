"""Every recipe against the baseline: task by task, and on average."""

from collections.abc import Mapping
from dataclasses import dataclass

from adapt.show.report.tasks.collect import Results, Row, RunGroup
from adapt.statistics.compare import Comparison, average_over_tasks, compare
from adapt.statistics.holm import holm
from adapt.statistics.outcomes import Tested
from adapt.statistics.words import significant


@dataclass(frozen=True)
class RecipeCompared:
    """A comparison, and its p corrected for the number of recipes compared on the same task."""

    comparison: Comparison
    adjusted: float | None
    recipes: int = 1
    """How many recipes were compared."""

    @property
    def significant(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return significant(self.comparison, self.adjusted)

    @property
    def tone(self) -> str:
        """`better`, `worse`, or `open` if the difference may be chance."""
        if not self.significant:
            return "open"
        return "better" if self.comparison.difference > 0 else "worse"


@dataclass(frozen=True)
class Compared:
    """All comparisons of a study."""

    tasks: dict[tuple[str, str], RecipeCompared]
    """The comparison of each recipe in each row, by the names of both."""
    average: dict[str, RecipeCompared]
    """By recipe, over the rows that it shares with the baseline; empty where a task has several rows.

    Those share their test examples, and the average is of tasks that have nothing in common.
    """
    shared: dict[str, int]
    """For each recipe, the number of those rows."""


def compare_all(results: Results, without_leaks: bool = False) -> Compared:
    """Compares all recipes with the baseline; nothing where there is none."""
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
    return Compared(tasks, corrected(pooled), {recipe: len(comparisons) for recipe, comparisons in by_recipe.items()})


def _of_row(row: Row, results: Results, without_leaks: bool) -> dict[str, RecipeCompared]:
    baseline = row.groups.get(results.baseline or "")
    if baseline is None:
        return {}
    others = [row.groups[recipe] for recipe in results.recipes if recipe in row.groups and recipe != baseline.recipe]
    return corrected({other.recipe: compare(*_sides(other, baseline, without_leaks)) for other in others})


def _sides(recipe: RunGroup, baseline: RunGroup, without_leaks: bool) -> tuple[Tested, Tested]:
    """Returns both sides, with their predictions only if these are of the same examples."""
    sides = recipe.tested(without_leaks), baseline.tested(without_leaks)
    if recipe.predictions.ids == baseline.predictions.ids:
        return sides
    return Tested(sides[0].scores), Tested(sides[1].scores)


def corrected(comparisons: Mapping[str, Comparison]) -> dict[str, RecipeCompared]:
    """Comparisons of several recipes with one baseline, their p corrected for how many there are."""
    tested = {recipe: comparison.p for recipe, comparison in comparisons.items() if comparison.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        recipe: RecipeCompared(comparison, adjusted.get(recipe), len(tested))
        for recipe, comparison in comparisons.items()
    }
