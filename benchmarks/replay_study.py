"""Prints the results of a finished study of replayed text: losses by learning rate, and paired differences.

The first table has the held-out losses of the chain's first seed, which decides the learning rates. The second table
has the mean losses of the other seeds at each recipe's best rate. It also has the differences from the chain's baseline
and from the recipe `real`, paired by seed, with intervals. The option --csv FILE writes all losses to a file.

python -m benchmarks.replay_study benchmarks/replay_study.yaml [--csv FILE] [options of dontstop chain]
python -m benchmarks.replay_study benchmarks/encoder_replay_study.yaml [--csv FILE] [options of dontstop chain]
"""

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np

from adapt.show.blocks import NONE, Cell, Table
from adapt.show.report.study import Study
from adapt.statistics.comparison import holm, paired
from benchmarks.finished_chain import print_tables, read_finished, split_file, write_csv

REAL = "real"
"""The recipe that replays real general text."""
BEFORE = "before training"
"""Name of the model that all recipes start from, in tables and files."""
TEXTS = {"domain": "the domain", "general": "general text"}
Losses = dict[tuple[str, str], dict[str, dict[str, float]]]
"""Held-out loss after training [nats per token], keyed by recipe and rate, then seed, then text."""
AtBest = dict[str, dict[str, dict[str, float]]]
"""Held-out losses at each recipe's best rate, keyed by recipe, seed and text, without the seed that chose the rate."""
Pair = tuple[str, str, str]
"""A recipe, the baseline that it is compared with, and the text."""
LEVEL = 0.05


def losses(finished: Study) -> tuple[dict[str, float], Losses]:
    """Returns the losses before training by text, and the losses of all adapted models."""
    before: dict[str, float] = {}
    found: Losses = {}
    for entry in finished.entries:
        values = entry.values
        if entry.record.stage == "export" and "recipe" in values:
            of = entry.result.losses
            before = {text: of[text].before.value for text in TEXTS}
            after = {text: of[text].after.value for text in TEXTS}
            found.setdefault((values["recipe"], values["rate"]), {})[values["seed"]] = after
    return before, found


def best_rates(found: Losses, choosing: str) -> dict[str, str]:
    """Returns the rate with the lowest mean of the losses on both texts, with the seed `choosing`, for each recipe."""
    best: dict[str, tuple[float, str]] = {}
    for (recipe, rate), seeds in found.items():
        if choosing in seeds:
            mean = float(np.mean([*seeds[choosing].values()]))
            best[recipe] = min(best.get(recipe, (np.inf, "")), (mean, rate))
    return {recipe: rate for recipe, (_, rate) in best.items()}


def at_best(found: Losses, best: Mapping[str, str], choosing: str) -> AtBest:
    """Returns the losses at each recipe's best rate, without the seed `choosing`."""
    return {
        recipe: {seed: of for seed, of in found[recipe, rate].items() if seed != choosing}
        for recipe, rate in best.items()
    }


def by_rate(found: Losses, best: Mapping[str, str], choosing: str) -> Table:
    """Makes the table of losses with the seed `choosing`, with a row per recipe and rate."""
    rows: list[list[Cell | str]] = [
        [recipe, Cell(rate, strong=best[recipe] == rate), *(f"{seeds[choosing][text]:.3f}" for text in TEXTS)]
        for (recipe, rate), seeds in found.items()
        if choosing in seeds
    ]
    header = ["recipe", "rate", *(f"loss on {text}" for text in TEXTS.values())]
    note = "Bold: the rate with the lowest mean loss."
    return Table(header, rows, f"Losses by learning rate (seed {choosing})", note)


def compared(before: Mapping[str, float], chosen: AtBest, best: Mapping[str, str], baselines: Sequence[str]) -> Table:
    """Makes the table of mean losses at the best rates, with differences from each of the recipes `baselines`."""
    significant = differing(chosen, baselines)
    first = [cell for text in TEXTS for cell in (f"{before[text]:.3f}", *[NONE] * len(baselines))]
    rows: list[list[Cell | str]] = [[BEFORE, NONE, NONE, *first]]
    for recipe, seeds in chosen.items():
        if seeds:
            cells: list[Cell | str] = []
            for text in TEXTS:
                cells.append(f"{np.mean([of[text] for of in seeds.values()]):.3f}")
                cells += [difference(chosen, (recipe, baseline, text), significant) for baseline in baselines]
            rows.append([recipe, best[recipe], f"{len(seeds)}", *cells])
    against = [f"against {baseline}" for baseline in baselines]
    header = ["recipe", "rate", "seeds", *(name for text in TEXTS.values() for name in (f"loss on {text}", *against))]
    note = (
        "Nats per token, on text that no recipe trained on; lower is better. Differences are paired by seed, with 95%"
        " intervals by Student's t or the sign-flip test. * p < .05 after Holm's correction for all differences."
    )
    return Table(header, rows, "Mean losses at the best rate", note)


def gaps(chosen: AtBest, pair: Pair) -> list[float]:
    """Returns the differences of a recipe's losses from a baseline's losses, for the seeds that both ran with."""
    recipe, baseline, text = pair
    mine, other = chosen[recipe], chosen.get(baseline, {})
    return [mine[seed][text] - other[seed][text] for seed in mine if seed in other and recipe != baseline]


def differing(chosen: AtBest, baselines: Sequence[str]) -> set[Pair]:
    """Returns the pairs whose losses differ: p < .05 after Holm's correction for all pairs of the table."""
    pairs = [(recipe, baseline, text) for recipe in chosen for baseline in baselines for text in TEXTS]
    found = {pair: p for pair in pairs if (own := gaps(chosen, pair)) and (p := paired(own).p) is not None}
    # the difference between two baselines occurs twice in the table, but is one test
    tests = {pair: p for pair, p in found.items() if pair[0] not in baselines[: baselines.index(pair[1])]}
    below = {pair for pair, p in zip(tests, holm([*tests.values()]), strict=True) if p < LEVEL}
    return below | {(baseline, recipe, text) for recipe, baseline, text in below}


def difference(chosen: AtBest, pair: Pair, significant: AbstractSet[Pair]) -> Cell:
    """Formats the mean difference of a recipe's loss from a baseline's loss, with its interval."""
    own = gaps(chosen, pair)
    if not own:
        return Cell(NONE)
    found = paired(own)
    known = found.low is not None and found.high is not None
    shown = f"{found.low:+.3f} to {found.high:+.3f}" if known else ""
    return Cell(f"{found.difference:+.3f}", shown, "*" if pair in significant else "")


def write(before: Mapping[str, float], found: Losses, file: Path) -> None:
    """Writes the losses before training and of all runs as CSV."""
    rows = [
        (recipe, rate, seed, *(f"{of[text]:.4f}" for text in TEXTS))
        for (recipe, rate), seeds in found.items()
        for seed, of in seeds.items()
    ]
    start = (BEFORE, "", "", *(f"{before[text]:.4f}" for text in TEXTS))
    write_csv(("recipe", "rate", "seed", *TEXTS), [start, *rows], file)


def main() -> None:
    file, arguments = split_file("--csv", sys.argv[1:])
    chain, finished = read_finished(arguments)
    before, found = losses(finished)
    if not found:
        raise SystemExit(f"no model of {chain.name} has been adapted: {len(finished.missing)} stages have not run")
    if file:
        write(before, found, file)
    choosing = next(iter(chain.sets["seed"]))
    best = best_rates(found, choosing)
    chosen = at_best(found, best, choosing)
    tables = [by_rate(found, best, choosing), compared(before, chosen, best, [chain.baseline, REAL])]
    print_tables(finished, "Replayed text", [table for table in tables if table.rows])


if __name__ == "__main__":
    main()
