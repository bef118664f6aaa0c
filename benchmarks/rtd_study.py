"""Prints the results of a finished study of replaced-token detection: the Markdown tables of docs/science/dapt-tapt.md.

The tables have the tokens and losses of each training run, and the dev scores of seed 0 by learning rate. They also
have the test scores of the other seeds at each objective's best learning rate, with gains over the untrained model and
over MLM, paired by seed.

python -m benchmarks.rtd_study benchmarks/rtd_study.yaml [--csv FILE] [options of dontstop chain]
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from adapt.show.blocks import Cell, Table
from adapt.show.report.study import Study
from benchmarks.finished_chain import print_tables, read_finished, split_file, write_csv
from benchmarks.selection_study import Found, gains

NONE, MLM = "none", "mlm"
CHOOSING = "0"
"""The seed whose dev scores decide the learning rates. The other seeds give the test scores."""
Scores = dict[tuple[str, str], list[tuple[str, str, float, float]]]
"""Task, seed, dev score and test score of each fine-tuning run, keyed by recipe and rate."""


def trainings(finished: Study) -> Table:
    """Makes the table of training runs: tokens, time, and held-out loss, with a row per objective, rate and seed."""
    rows: list[list[Cell | str]] = []
    for entry in finished.entries:
        if entry.record.stage == "export":
            loss = entry.result.losses.get("domain")
            rows.append(
                [
                    *(entry.values[name] for name in ("objective", "rate", "seed")),
                    f"{entry.result.tokens:,}",
                    f"{entry.result.device_seconds:.0f}",
                    f"{loss.after.value:.3f}" if loss else "",
                    f"{loss.figures_after['auc']:.3f}" if loss and "auc" in loss.figures_after else "",
                ]
            )
    header = ["objective", "rate", "seed", "tokens", "device time [s]", "held-out loss", "AUC"]
    note = "Losses of the two objectives cannot be compared. Replaced tokens are those of the generator at the start."
    return Table(header, rows, "Trainings at equal compute", note)


def scores(finished: Study) -> Scores:
    """Returns the scores of all fine-tuning runs, by recipe and rate.

    Runs of the untrained model, which are the same for all rates, count once.
    """
    found: Scores = {}
    counted: set[str] = set()
    for entry in finished.entries:
        if entry.record.stage == "finetune" and entry.record.key not in counted:
            counted.add(entry.record.key)
            values, metrics = entry.values, entry.record.metrics
            row = values["task"], values["seed"], metrics["dev_score"], metrics["score"]
            found.setdefault((values["recipe"], values["rate"]), []).append(row)
    return found


def write_scores(found: Scores, file: Path) -> None:
    """Writes the dev and test scores of all fine-tuning runs as CSV."""
    rows = [(*key, *run) for key, runs in found.items() for run in runs]
    write_csv(("recipe", "rate", "task", "seed", "dev", "test"), rows, file)


def best_rates(found: Scores) -> dict[str, str]:
    """Returns the rate with the best mean dev score over tasks for the seed CHOOSING, by recipe."""
    best: dict[str, tuple[float, str]] = {}
    for (recipe, rate), rows in found.items():
        if dev := _choosing(rows):
            best[recipe] = max(best.get(recipe, (-1.0, "")), (float(np.mean(dev)), rate))
    return {recipe: rate for recipe, (_, rate) in best.items()}


def _choosing(rows: Iterable[tuple[str, str, float, float]]) -> list[float]:
    return [dev for _, seed, dev, _ in rows if seed == CHOOSING]


def by_rate(found: Scores) -> Table:
    """Makes the table of mean dev scores, with a row per recipe and rate."""
    best = best_rates(found)
    rows: list[list[Cell | str]] = [
        [recipe, rate, Cell(f"{100 * np.mean(dev):.1f}", strong=best[recipe] == rate), f"{len(dev)}"]
        for (recipe, rate), runs in found.items()
        if (dev := _choosing(runs))
    ]
    title = f"Dev scores by learning rate (seed {CHOOSING})"
    return Table(["recipe", "rate", "mean dev score", "fine-tunings"], rows, title)


def at_best(found: Scores, best: Mapping[str, str]) -> Found:
    """Returns the test scores of each recipe at its best rate, without the seed CHOOSING."""
    chosen = Found()
    for recipe, rate in best.items():
        for task, seed, _, test in (run for run in found[recipe, rate] if run[1] != CHOOSING):
            chosen.scores.setdefault(recipe, {}).setdefault(task, {})[seed] = test
    return chosen


def show_study(title: str, trained: Callable[[Study], Table], baselines: Sequence[str] = ()) -> None:
    """Prints the tables of the study that the command line names: training runs, dev scores by rate, and gains.

    With `--csv FILE`, also writes the scores of all fine-tuning runs into a file.

    Args:
        title: title of the section.
        trained: makes the table of the training runs.
        baselines: recipes with which the other recipes are compared. If empty, the baseline of the chain file is used.
    """
    file, arguments = split_file("--csv", sys.argv[1:])
    chain, finished = read_finished(arguments)
    found = scores(finished)
    if not found:
        raise SystemExit(f"nothing of {chain.name} has been fine-tuned: {len(finished.missing)} stages have not run")
    if file:
        write_scores(found, file)
    chosen = at_best(found, best_rates(found))
    compared = [gains(chosen, name) for name in baselines or [chain.baseline] if name in chosen.scores]
    print_tables(finished, title, [trained(finished), by_rate(found), *compared])


if __name__ == "__main__":
    show_study("Replaced-token detection", trainings, (NONE, MLM))
