"""Prints whether the results of a finished chain confirm the papers' claims, as a table for docs/science/dapt-tapt.md.

python -m benchmarks.claims benchmarks/replication.yaml [options of dontstop chain]

A claim about two recipes is decided if p is below .05 after Holm's correction over the compared recipes; the sign of
the difference then decides whether it holds. The difference does not matter if its interval lies within `report.margin`
of the chain file, after the same correction. Otherwise, the claim is undecided.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from scipy.stats import permutation_test, spearmanr

from adapt.evaluate.compared_models import ModelsCompared
from adapt.show.report.study import Study
from adapt.show.report.study_results import collect
from adapt.show.report.task_comparison import RecipeCompared, compare_all
from adapt.statistics.comparison import points, verdict
from benchmarks.finished_chain import read_finished

Line = tuple[str, str, str]
"""A row of the table: a claim, its verdict, and the differences or correlations behind it."""

GAINS = [
    ("DAPT helps (table 3)", "DAPT", "base"),
    ("DAPT on an irrelevant domain helps less than on the task's (table 3)", "DAPT", "not-DAPT"),
    ("TAPT helps (table 5)", "TAPT", "base"),
    ("DAPT then TAPT helps (table 5)", "DAPT+TAPT", "base"),
    ("DAPT then TAPT is better than DAPT alone (table 5)", "DAPT+TAPT", "DAPT"),
    ("DAPT then TAPT is better than TAPT alone (table 5)", "DAPT+TAPT", "TAPT"),
]


def gains(found: Study) -> Iterator[Line]:
    """Yields a line for each claim about two recipes, with their difference averaged over tasks and on each task."""
    for claim, recipe, baseline in GAINS:
        compared = compare_all(collect(replace(found, baseline=baseline)))
        if recipe not in compared.average:
            continue
        tasks = {name: each for (name, other), each in compared.tasks.items() if other == recipe}
        each = ", ".join(
            f"{name} {points(one.comparison.difference)}{'*' * one.significant}" for name, one in tasks.items()
        )
        average = compared.average[recipe]
        yield claim, direction(average), f"{verdict(average.comparison, average.adjusted)}. {each}"


def direction(found: RecipeCompared) -> str:
    """Returns the verdict on the claim that the difference between two recipes is above 0."""
    said = {"better": "holds", "worse": "does not hold", "equal": "does not matter", "open": "undecided"}
    return said[found.ended]


def harder_tasks(found: Study) -> Iterator[Line]:
    """Yields, for DAPT and DAPT+TAPT, the rank correlation over tasks between gain and score before adaptation."""
    results = collect(found)
    compared = compare_all(results)
    for recipe in ("DAPT", "DAPT+TAPT"):
        rows = [row for row in results.rows if (row.name, recipe) in compared.tasks]
        if len(rows) < 4:
            continue
        base = [float(row.groups[found.baseline].tested().scores.mean()) for row in rows]
        gain = [compared.tasks[row.name, recipe].comparison.difference for row in rows]
        rho, p = _correlation(base, gain)
        state = "undecided" if p >= 0.05 else "holds" if rho < 0 else "does not hold"
        claim = f"The harder the task, the larger the gain ({recipe}; practitioners)"
        yield claim, state, f"Spearman {rho:+.2f} between score without and gain, p = {p:.2f}, {len(rows)} tasks"


def _correlation(one: list[float], other: list[float]) -> tuple[float, float]:
    """Returns Spearman's rank correlation and the p value of its permutation test."""

    def statistic(values: list[float]) -> float:
        return float(spearmanr(values, other).statistic)

    p = permutation_test((one,), statistic, permutation_type="pairings")
    return statistic(one), float(p.pvalue)


def forgetting(found: Study) -> Iterator[Line]:
    """Yields how much each DAPT run changes the loss on general text."""
    changes = {
        "-".join(entry.values.values()): entry.result.losses["general"].change
        for entry in found.entries
        if entry.job == "dapt" and "general" in entry.result.losses
    }
    known = {name: change for name, change in changes.items() if change.low is not None}
    if known:
        state = "holds" if all(change.low > 0 for change in known.values()) else "undecided"
        figures = ", ".join(f"{name} {change.text('+.2f')}" for name, change in known.items())
        yield "DAPT forgets: the loss on general text rises (table 12)", state, figures


def loss_matrix(found: Study) -> Iterator[Line]:
    """Checks that, on each domain, the model adapted to this domain has the lowest loss of all models."""
    for entry in found.entries:
        if entry.record.stage != "compare":
            continue
        compared: ModelsCompared = entry.result
        best = {
            domain: compared.models[min(range(len(compared.models)), key=lambda m: compared.loss[m][d])]
            for d, domain in enumerate(compared.domains)
        }
        own = [name.endswith(domain) for domain, name in best.items() if domain != "general"]
        state = "holds" if all(own) else "does not hold"
        yield "Each domain is best known to the model adapted to it (table 12)", state, str(best)


def main() -> None:
    _, found = read_finished(sys.argv[1:])
    print("| claim | here | figures |\n|---|---|---|")
    for part in (gains, forgetting, loss_matrix, harder_tasks):
        for claim, state, figures in part(found):
            print(f"| {claim} | **{state}** | {figures} |")


if __name__ == "__main__":
    main()
