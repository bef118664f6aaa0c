"""Prints the results of a finished study of sentence vectors, as Markdown tables.

An arm is a way of training. Each arm is reported at the learning rate with the best mean nDCG@10 on the dev pairs. The
tables have the measures on the test pairs, and the differences between arms with 95% bootstrap intervals over queries.
The value of a query is averaged over seeds. With `--csv FILE`, also writes the measures of each run, as means over
queries.

python -m benchmarks.sentence_study benchmarks/sentence_study.yaml [--csv FILE] [options of dontstop chain]
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from adapt.evaluate.measure_model import with_interval
from adapt.evaluate.measurements import MEASURES
from adapt.evaluate.retrieval import QUERIES_FILE
from adapt.show.blocks import Cell, Table
from adapt.show.report.study import Study
from benchmarks.finished_chain import print_tables, read_finished, split_file, write_csv

BASE = "base"
"""Name of the untrained arm: the base model, from which all other arms start."""
CHOSEN_BY: Final = "ndcg_at_10"
SAMPLES = 2000
Queries = dict[str, np.ndarray]
"""Values of each query, keyed by measure."""


@dataclass(frozen=True)
class Measured:
    """Measured values of all trained models and of the base model."""

    queries: dict[str, dict[str, dict[str, dict[str, Queries]]]] = field(default_factory=dict)
    """Values of queries, keyed by arm, learning rate, split of the pairs, and seed."""
    cosines: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Mean cosine similarity between two documents of the test pairs, keyed by arm, learning rate and seed."""

    def rate(self, arm: str) -> str:
        """Returns the arm's learning rate with the best nDCG@10 on the dev pairs, averaged over seeds."""
        rates = self.queries[arm]
        return max(rates, key=lambda rate: np.mean([of[CHOSEN_BY].mean() for of in rates[rate]["dev"].values()]))

    def on_test(self, arm: str) -> dict[str, Queries]:
        """Returns the values of the test queries at the chosen learning rate, keyed by seed."""
        return self.queries[arm][self.rate(arm)]["test"]

    def averaged(self, arm: str, measure: str) -> np.ndarray:
        """Returns the value of each test query, as the mean over seeds."""
        values: np.ndarray = np.mean([of[measure] for of in self.on_test(arm).values()], axis=0)
        return values


def measured_in(finished: Study) -> Measured:
    """Reads the measured values from the records of a finished chain."""
    found = Measured()
    for entry in finished.entries:
        change = getattr(entry.result, "retrieval", None)
        if change is None:
            continue
        rate, seed, split = (entry.values[name] for name in ("rate", "seed", "split"))
        parts = {entry.name: ("after", rate, seed, change.after), BASE: ("before", "-", "-", change.before)}
        for arm, (part, of_rate, of_seed, retrieved) in parts.items():
            values = _values(entry.record.inputs[f"retrieved.{part}"])
            found.queries.setdefault(arm, {}).setdefault(of_rate, {}).setdefault(split, {})[of_seed] = values
            if split == "test":
                found.cosines.setdefault(arm, {}).setdefault(of_rate, {})[of_seed] = retrieved.mean_cosine
    return found


def _values(made: Mapping[str, str]) -> Queries:
    content = json.loads((Path(made["path"]) / QUERIES_FILE).read_text())
    return {name: np.array(values) for name, values in content.items()}


def arms(found: Measured) -> Table:
    """Makes the table of each arm's measures on the test pairs at its best learning rate."""
    rows: list[list[Cell | str]] = []
    for arm in sorted(found.queries, key=lambda name: name != BASE):
        row: list[Cell | str] = [arm, found.rate(arm)]
        for measure in MEASURES:
            by_seed = [float(of[measure].mean()) for of in found.on_test(arm).values()]
            deviation = f"± {np.std(by_seed, ddof=1):.3f}" if len(by_seed) > 1 else ""
            row.append(Cell(f"{np.mean(by_seed):.3f}", deviation))
        rows.append([*row, f"{np.mean(list(found.cosines[arm][found.rate(arm)].values())):.2f}"])
    header = ["arm", "learning rate", *MEASURES.values(), "mean cosine"]
    note = "Test pairs; mean and standard deviation over seeds. The learning rate is the best on the dev pairs."
    return Table(header, rows, "Retrieval", note)


def differences(found: Measured) -> Table:
    """Makes the table of differences between arms on the test pairs, with intervals over queries."""
    names = sorted(found.queries, key=lambda name: name != BASE)
    rows: list[list[Cell | str]] = []
    for one, two in combinations(names, 2):
        row: list[Cell | str] = [f"{two} - {one}"]
        for measure in MEASURES:
            change = found.averaged(two, measure) - found.averaged(one, measure)
            row.append(with_interval(np.mean, (change,), SAMPLES).cell("+.3f"))
        rows.append(row)
    note = "Means over seeds, with 95% intervals over queries, not corrected for the number of comparisons."
    return Table(["difference", *MEASURES.values()], rows, "Differences between arms", note)


def rates(found: Measured) -> Table:
    """Makes the table of nDCG@10 on the dev pairs for each learning rate."""
    rows: list[list[Cell | str]] = [
        [arm, rate, f"{np.mean([of[CHOSEN_BY].mean() for of in splits['dev'].values()]):.3f}"]
        for arm, by_rate in found.queries.items()
        for rate, splits in by_rate.items()
    ]
    return Table(["arm", "learning rate", MEASURES[CHOSEN_BY]], rows, "Learning rates, on the dev pairs")


def runs(found: Measured) -> Iterator[tuple[str | float, ...]]:
    """Yields the arm, learning rate, seed, split and measures of each run. Measures are means over queries."""
    for arm, by_rate in found.queries.items():
        for rate, splits in by_rate.items():
            for split, seeds in splits.items():
                for seed, values in seeds.items():
                    yield arm, rate, seed, split, *(float(values[measure].mean()) for measure in MEASURES)


def main() -> None:
    file, arguments = split_file("--csv", sys.argv[1:])
    chain, finished = read_finished(arguments)
    found = measured_in(finished)
    if not found.queries:
        raise SystemExit(f"nothing of {chain.name} has run: {len(finished.missing)} stages are missing")
    if file:
        write_csv(("arm", "rate", "seed", "split", *MEASURES), runs(found), file)
    print_tables(finished, "Sentence vectors", [arms(found), differences(found), rates(found)])


if __name__ == "__main__":
    main()
