"""The verdict: one sentence for the whole, one for each task, no stronger than the figures allow."""

from adapt.show.blocks import FindingBlock
from adapt.show.report.tasks.collect import METRICS, Results, Row
from adapt.show.report.tasks.compared import Compared, RecipeCompared
from adapt.show.report.tasks.cost import Cost, Trainings, hours
from adapt.statistics.words import points, verdict


def verdicts(results: Results, compared: Compared, trainings: Trainings) -> list[FindingBlock]:
    """A sentence for the whole first, if there is more than one task; then one for the best recipe of each task."""
    if not results.rows:
        return [FindingBlock("Nothing to judge yet", "No fine-tuning run has finished.")]
    if not compared.tasks:
        return [FindingBlock("No comparison", _why_none(results)), *(_best_alone(row, results) for row in results.rows)]
    overall = [_overall(results, compared, trainings)] if len(results.rows) > 1 and compared.average else []
    return [*overall, *(_of_task(row, results, compared, trainings) for row in results.rows)]


def _why_none(results: Results) -> str:
    if results.baseline is None:
        return "There is no finished run of the baseline, so scores are shown and differences are not."
    return f"Only the baseline, {results.baseline}, has finished."


def _best_alone(row: Row, results: Results) -> FindingBlock:
    best = max(row.groups.values(), key=lambda group: group.tested().scores.mean())
    score = 100 * best.tested().scores.mean()
    return FindingBlock(
        row.name, f"Highest mean score: {results.label(best.recipe)}, {score:.1f} {METRICS[row.metric]}."
    )


def _overall(results: Results, compared: Compared, trainings: Trainings) -> FindingBlock:
    """The recipe that gains most on average, among those that were run on most tasks."""
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
    return FindingBlock(f"Overall: {results.label(best)}", f"{text}{price}.", average.tone)


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
    return FindingBlock(f"{row.name}: {results.label(best)}", f"{text}{price}.", by_recipe[best].tone)


def _sentence(compared: RecipeCompared, unit: str) -> str:
    text = verdict(compared.comparison, compared.adjusted, unit, compared.recipes)
    text = f"worse than the baseline, though the best of the others: {text}" if compared.tone == "worse" else text
    return text[0].upper() + text[1:]


def _price(cost: Cost, changes: list[float]) -> str:
    parts = []
    if cost.device_hours is not None:
        parts.append(f"cost {hours(cost.device_hours, 'device-')}")
    if changes:
        parts.append(f"general loss {span(changes)}")
    return "".join(f"; {part}" for part in parts)


def span(changes: list[float]) -> str:
    """A change of loss, or the range of several: `+0.21`, `+0.02 to +0.05`."""
    return " to ".join(dict.fromkeys([nats(min(changes)), nats(max(changes))]))


def nats(change: float, digits: int = 2) -> str:
    """A change of loss, with its sign."""
    text = f"{change:+.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text[1:]


def gain(compared: RecipeCompared) -> str:
    """A difference, marked if it is significant."""
    return points(compared.comparison.difference) + stars(compared)


def stars(compared: RecipeCompared | None) -> str:
    """`*` for a corrected p below .05, `**` below .01."""
    if compared is None or not compared.significant or compared.adjusted is None:
        return ""
    return "**" if compared.adjusted < 0.01 else "*"
