"""Prints the results of a finished study of replayed text: losses by learning rate, and paired differences.

The tables have the held-out losses of the first seed by recipe and learning rate, the mean losses of the other seeds
at each recipe's best rate, and the differences between recipes, paired by seed, with intervals. The option --json FILE
also writes them to a file.

python -m benchmarks.replay_study benchmarks/replay_study.yaml [--json FILE] [options of dontstop chain]
"""

import json
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.study import Study
from adapt.statistics.comparison import Comparison, p_value, paired
from benchmarks.finished_chain import print_tables, read_finished, split_file

CHOOSING = "1001"
"""The seed whose losses decide the learning rates. The other seeds give the results."""
TEXTS = ("domain", "general")
Losses = dict[tuple[str, str], dict[str, dict[str, float]]]
"""Held-out loss after training [nats per token], keyed by recipe and rate, then seed, then text."""
Differences = Mapping[tuple[str, str, str], Comparison]
"""Comparison of two recipes on a text, keyed by both recipes and the text."""
AtBest = dict[str, dict[str, dict[str, float]]]
"""Held-out losses at each recipe's best rate, keyed by recipe, seed and text, without the seed CHOOSING."""


def losses(finished: Study) -> Losses:
    """Returns the losses of all adapted models."""
    found: Losses = {}
    for entry in finished.entries:
        values = entry.values
        if entry.record.stage == "export" and "recipe" in values:
            of = entry.result.losses
            after = {text: of[text].after.value for text in TEXTS}
            found.setdefault((values["recipe"], values["rate"]), {})[values["seed"]] = after
    return found


def best_rates(found: Losses) -> dict[str, str]:
    """Returns the rate with the lowest mean of the losses on both texts, with the seed CHOOSING, for each recipe."""
    best: dict[str, tuple[float, str]] = {}
    for (recipe, rate), seeds in found.items():
        if CHOOSING in seeds:
            mean = float(np.mean([*seeds[CHOOSING].values()]))
            best[recipe] = min(best.get(recipe, (np.inf, "")), (mean, rate))
    return {recipe: rate for recipe, (_, rate) in best.items()}


def at_best(found: Losses, best: Mapping[str, str]) -> AtBest:
    """Returns the losses at each recipe's best rate, without the seed CHOOSING."""
    return {
        recipe: {seed: of for seed, of in found[recipe, rate].items() if seed != CHOOSING}
        for recipe, rate in best.items()
    }


def differences(chosen: AtBest) -> Differences:
    """Compares every two recipes on each text, paired by seed. The keys are the two recipes and the text.

    A difference is the first recipe's loss minus the second recipe's loss.
    """
    compared = {}
    for first, second in combinations(chosen, 2):
        shared = [seed for seed in chosen[first] if seed in chosen[second]]
        for text in TEXTS if shared else ():
            gaps = [chosen[first][seed][text] - chosen[second][seed][text] for seed in shared]
            compared[first, second, text] = paired(gaps)
    return compared


def by_rate(found: Losses, best: Mapping[str, str]) -> Table:
    """Makes the table of losses with the seed CHOOSING, with a row per recipe and rate."""
    rows: list[list[Cell | str]] = [
        [recipe, Cell(rate, strong=best[recipe] == rate), *(f"{seeds[CHOOSING][text]:.3f}" for text in TEXTS)]
        for (recipe, rate), seeds in found.items()
        if CHOOSING in seeds
    ]
    header = ["recipe", "rate", "loss on the domain", "loss on general text"]
    return Table(
        header, rows, f"Losses by learning rate (seed {CHOOSING})", "Bold: the rate with the lowest mean loss."
    )


def of_recipes(chosen: AtBest, best: Mapping[str, str]) -> Table:
    """Makes the table of mean losses at each recipe's best rate."""
    rows: list[list[Cell | str]] = [
        [
            recipe,
            best[recipe],
            f"{len(seeds)}",
            *(f"{np.mean([of[text] for of in seeds.values()]):.3f}" for text in TEXTS),
        ]
        for recipe, seeds in chosen.items()
        if seeds
    ]
    header = ["recipe", "rate", "seeds", "loss on the domain", "loss on general text"]
    return Table(header, rows, "Mean losses at the best rate", "Nats per token, on text that no recipe trained on.")


def compared_table(compared: Differences) -> Table:
    """Makes the table of differences between recipes."""
    rows: list[list[Cell | str]] = []
    for (first, second, text), each in compared.items():
        known = each.low is not None and each.high is not None
        ends = f"{each.low:+.3f} to {each.high:+.3f}" if known else ""
        p = NONE if each.p is None else p_value(each.p, bare=True)
        rows.append([f"{first} - {second}", text, Cell(f"{each.difference:+.3f}", ends), p])
    note = "Nats per token, paired by seed, 95% intervals by Student's t or the sign-flip test, not corrected."
    return Table(["recipes", "text", "difference of losses", "p"], rows, "Differences between recipes", note)


def write(found: Losses, best: Mapping[str, str], compared: Differences, file: Path) -> None:
    """Writes the best rates, all losses, and the differences to a JSON file."""
    content = {
        "rates": dict(best),
        "losses": {f"{recipe}, {rate}": seeds for (recipe, rate), seeds in found.items()},
        "differences": {
            f"{first} - {second}, {text}": {"difference": of.difference, "low": of.low, "high": of.high, "p": of.p}
            for (first, second, text), of in compared.items()
        },
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    file, arguments = split_file("--json", sys.argv[1:])
    chain, finished = read_finished(arguments)
    found = losses(finished)
    if not found:
        raise SystemExit(f"no model of {chain.name} has been adapted: {len(finished.missing)} stages have not run")
    best = best_rates(found)
    chosen = at_best(found, best)
    compared = differences(chosen)
    tables = [by_rate(found, best), of_recipes(chosen, best), compared_table(compared)]
    print_tables(finished, "Replayed text", [table for table in tables if table.rows])
    if file:
        write(found, best, compared, file)


if __name__ == "__main__":
    main()
