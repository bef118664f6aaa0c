"""Prints the results of a finished study of selections, as the Markdown tables of docs/science/selection.md.

The tables have each recipe's scores and its gain over the baseline, paired by seed, per task and on average; how close
each selection is to the task, compared with random documents; and whether this closeness predicts the gain.

python -m benchmarks.selection_study benchmarks/selection_study.yaml [options of dontstop chain]
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from scipy.stats import rankdata

from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.study import Study
from adapt.stage.select_documents import SelectionJudged
from adapt.statistics.comparison import p_value, paired, points
from adapt.statistics.seeds import CONFIDENCE, spread
from benchmarks.finished_chain import print_tables, read_finished

MEAN = "mean of tasks"
FIGURES = ("kl_reduction", "auc", "shared_words", "distinct", "distance")
SAMPLES = 2000
FEWEST = 4
"""Minimum number of selections for which a correlation is reported."""


@dataclass(frozen=True)
class Found:
    """Test scores of a study, and metrics of its selections."""

    scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Test scores, keyed by recipe, task and seed."""
    selections: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    """Metrics of each selection (see FIGURES), keyed by kind, task and seed."""

    @property
    def tasks(self) -> list[str]:
        """Returns the tasks for which at least one recipe has a score."""
        return list(dict.fromkeys(task for tasks in self.scores.values() for task in tasks))

    def differences(self, recipe: str, baseline: str, task: str) -> dict[str, float]:
        """Returns a recipe's gain over the baseline for each seed that both ran with.

        For MEAN, averages over tasks, and uses only seeds that every task has.
        """
        if task == MEAN:
            every = [self.differences(recipe, baseline, each) for each in self.tasks]
            shared = set.intersection(*map(set, every))
            return {seed: float(np.mean([each[seed] for each in every])) for seed in every[0] if seed in shared}
        mine, other = (self.scores.get(name, {}).get(task, {}) for name in (recipe, baseline))
        return {seed: score - other[seed] for seed, score in mine.items() if seed in other}


def found_in(finished: Study) -> Found:
    """Reads scores and metrics of selections from the records of a finished chain."""
    found = Found()
    for entry in finished.entries:
        values = entry.values
        if entry.record.stage == "finetune":
            of_recipe = found.scores.setdefault(values["recipe"], {})
            of_recipe.setdefault(values["task"], {})[values["seed"]] = entry.result.score
        elif entry.record.stage == "selection":
            of_kind = found.selections.setdefault(values["kind"], {})
            of_kind.setdefault(values["task"], {})[values["seed"]] = _figures(entry.result)
    return found


def _figures(judged: SelectionJudged) -> dict[str, float]:
    known = {**asdict(judged.selection), "kl_reduction": judged.kl_reduction}
    return {name: known[name] for name in FIGURES if known.get(name) is not None}


def gains(found: Found, baseline: str) -> Table:
    """Makes the table of each recipe's scores and their differences from the baseline."""
    rows: list[list[Cell | str]] = []
    for recipe, tasks in found.scores.items():
        row: list[Cell | str] = [recipe]
        for task in found.tasks:
            over_seeds = spread(list(tasks.get(task, {}).values()) or [np.nan])
            deviation = "" if over_seeds.deviation is None else f"± {100 * over_seeds.deviation:.1f}"
            row.append(Cell(f"{100 * over_seeds.mean:.1f}", deviation))
            row.append(_difference(found, recipe, baseline, task))
        rows.append([*row, _difference(found, recipe, baseline, MEAN)])
    header = ["recipe", *(title for task in found.tasks for title in (task, f"against {baseline}")), MEAN]
    note = "In points; mean over seeds. Differences are paired by seed: 95% interval by Student's t, not corrected."
    return Table(header, rows, f"Scores, and gains on {baseline}", note)


def _difference(found: Found, recipe: str, baseline: str, task: str) -> Cell:
    differences = list(found.differences(recipe, baseline, task).values())
    if recipe == baseline or not differences:
        return Cell(NONE)
    compared = paired(differences)
    if compared.low is None or compared.high is None or compared.p is None:
        return Cell(points(compared.difference))
    span = f"{points(compared.low)} to {points(compared.high)}, {p_value(compared.p)}"
    return Cell(points(compared.difference), span)


def selected(found: Found) -> Table:
    """Makes the table of the selections' metrics, averaged over seeds."""
    rows: list[list[Cell | str]] = [
        [
            f"{kind}, {task}",
            *(_mean([each[name] for each in seeds.values() if name in each]) for name in FIGURES),
        ]
        for kind, tasks in found.selections.items()
        for task, seeds in tasks.items()
    ]
    return Table(["selection", *(name.replace("_", " ") for name in FIGURES)], rows, "Selections, mean over seeds")


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" if values else NONE


def predicted(found: Found, baseline: str, recipes: Mapping[str, str]) -> Table | None:
    """Makes the table of correlations between a selection's metrics and its gain.

    Returns None if there are too few selections.

    Args:
        found: scores and metrics of the study.
        baseline: name of the recipe that trains on random documents.
        recipes: kind of selection of each other recipe, keyed by recipe.
    """
    rows: list[list[Cell | str]] = []
    for name in FIGURES:
        groups: list[int] = []
        pairs: list[np.ndarray] = []
        for recipe, kind in recipes.items():
            for number, task in enumerate(found.tasks):
                known = found.selections.get(kind, {}).get(task, {})
                gained = found.differences(recipe, baseline, task)
                both = [(known[seed][name], gained[seed]) for seed in gained if name in known.get(seed, {})]
                if both:
                    groups.append(number)
                    pairs.append(np.array(both))
        if len(pairs) >= FEWEST:
            rho, low, high = correlation(groups, pairs)
            rows.append([name.replace("_", " "), Cell(f"{rho:+.2f}", f"{low:+.2f} to {high:+.2f}"), f"{len(pairs)}"])
    note = (
        f"Spearman's rank correlation, within tasks, of the figure with the gain over {baseline}. Both are means over "
        "seeds. The 95% interval resamples selections and their seeds."
    )
    header = ["figure", "correlation with the gain", "selections"]
    return Table(header, rows, "Which figure predicts the gain?", note) if rows else None


def correlation(groups: Sequence[int], pairs: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Returns the rank correlation within groups, with its bootstrap interval. One group gives Spearman's correlation.

    Args:
        groups: number of the group that each case belongs to.
        pairs: for each case, two values per seed, [seeds, 2]. Cases and their seeds are resampled.
    """
    rng = np.random.default_rng(0)
    of_case = np.array(groups)

    def rho(cases: np.ndarray, means: np.ndarray) -> float:
        ranks = np.zeros_like(means)
        for group in set(of_case[cases].tolist()):
            inside = of_case[cases] == group
            ranks[inside] = rankdata(means[inside], axis=0) - (inside.sum() + 1) / 2
        sizes = np.linalg.norm(ranks, axis=0)
        return float(ranks[:, 0] @ ranks[:, 1] / sizes.prod()) if sizes.all() else np.nan

    draws = []
    for _ in range(SAMPLES):
        cases = rng.integers(0, len(pairs), len(pairs))
        means = [pairs[case][rng.integers(0, len(pairs[case]), len(pairs[case]))].mean(0) for case in cases]
        draws.append(rho(cases, np.array(means)))
    low, high = np.nanquantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return rho(np.arange(len(pairs)), np.array([each.mean(0) for each in pairs])), float(low), float(high)


def main() -> None:
    chain, finished = read_finished(sys.argv[1:])
    found = found_in(finished)
    if not found.scores:
        raise SystemExit(f"nothing of {chain.name} has been fine-tuned: {len(finished.missing)} stages have not run")
    kinds = {
        name: str(attributes["kind"])
        for name, attributes in chain.sets["recipe"].items()
        if attributes and attributes["kind"] and name != chain.baseline
    }
    other = [name for name in found.scores if name != chain.baseline and name == "TAPT"]
    tables = [
        *(gains(found, name) for name in (chain.baseline, *other)),
        selected(found),
        predicted(found, chain.baseline, kinds),
    ]
    print_tables(finished, "Selections", tables)


if __name__ == "__main__":
    main()
