"""Measures the effect of each part of DAS, and of each deviation from its published code, on PubMed, then film reviews.

Importance has three metrics. `stability` is the rank correlation (Spearman, within a layer and kind of unit) of two
measurements that differ in rows and dropout. `agreement` is the rank correlation with this project's measurement. The
third is how much the held-out loss rises when the most important tenth of each layer's units is switched off. A larger
rise is better.

Models are then trained on the second domain, once with this project's DAS and once per variant. In each variant, one
part of DAS works as published, is left out, or has another setting. Differences are paired by seed, with 95%
intervals. Example:
python -m benchmarks.das_deviations --data ../shared/data --models ../shared/models
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from functools import partial
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy.stats import ttest_1samp

from benchmarks.common import machine, parser_of

Figures = dict[str, float]
WIDTH = 160
WHAT = ["importance", "trainings"]
QUICK = ["DAS", "plain training", "published: all of these"]
"""Names of the ways of training that `--quick` measures."""


def main() -> None:
    """Measures importance and losses, prints a table of each, and writes the JSON."""
    os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    from benchmarks.deviations import TRAININGS, of_seed

    parser = parser_of("das_deviations", __doc__, needs_folders=True)
    parser.add_argument("--base", default="bert-tiny-general", help="which of them")
    parser.add_argument("--measure", choices=WHAT, nargs="+", default=WHAT)
    parser.add_argument("--trainings", choices=TRAININGS, nargs="+", metavar="NAME", help="all; with --quick, three")
    parser.add_argument("--steps", type=int, help="of 4,096 tokens, of each domain: 150; with --quick, 10")
    parser.add_argument("--seeds", type=int, help="4; with --quick, 2")
    options = parser.parse_args()
    options.trainings = options.trainings or (QUICK if options.quick else list(TRAININGS))
    options.steps = options.steps or (10 if options.quick else 150)
    options.seeds = options.seeds or (2 if options.quick else 4)
    given = (options.data, options.models / options.base, options.steps)
    found: dict[str, list[dict[str, Any]]] = {}
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)), maxtasksperchild=1) as pool:
        for what in options.measure:
            found[what] = []
            names = options.trainings if what == "trainings" else [what]
            for each in pool.imap(partial(of_seed, *given, names), range(options.seeds)):
                found[what].append(each)
                print(f"{what}: {len(found[what])} of {options.seeds} seeds", file=sys.stderr, flush=True)
                if options.json:
                    values = {"name": "das_deviations", "machine": machine(), "options": vars(options), "seeds": found}
                    options.json.write_text(json.dumps(values, indent=1, default=str) + "\n")
            (show_importance if what == "importance" else show_losses)(found[what])


def show_importance(found: list[dict[str, Any]]) -> None:
    """Prints one line per way of measuring importance."""
    table = Table("importance of", "measured", "stability", "agreement", "switched off [nats]")
    for about, ways in found[0].items():
        for how, figures in ways.items():
            every = [each[about][how] for each in found]
            table.add_row(about, how, *(interval([each[name] for each in every]) for name in figures))
    Console(width=WIDTH).print(table)


def show_losses(found: list[dict[str, Any]]) -> None:
    """Prints one line per training run, with the difference from the first run."""
    columns = "forgetting", "just learnt", "at the end", "general, change"
    differences = "forgetting", "just learnt", "at the end"
    table = Table("training", *columns, *(f"{column}, difference" for column in differences))
    _, first, *_ = found[0]
    expected = [outcome(each, first) for each in found]
    for name in list(found[0])[1:]:
        every = [outcome(each, name) for each in found]
        cells = [f"{mean(each[column] for each in every):.3f}" for column in columns]
        if name != first:
            pairs = list(zip(every, expected, strict=True))
            cells += [interval([a[column] - b[column] for a, b in pairs], "+") for column in differences]
        table.add_row(name, *cells)
    Console(width=WIDTH).print(table)


def outcome(losses: Mapping[str, Figures], name: str) -> Figures:
    """Returns the effects of training on the second domain [nats per predicted token]."""
    before, after = losses["before"], losses[name]
    return {
        "forgetting": after["first"] - before["first"],
        "just learnt": after["second"],
        "at the end": (after["first"] + after["second"]) / 2,
        "general, change": after["general"] - before["general"],
    }


def interval(values: list[float], sign: str = "") -> str:
    """Formats the mean of some values with its 95% interval."""
    if len(set(values)) < 2:
        return f"{values[0]:{sign}.3f}"
    low, high = ttest_1samp(values, 0.0).confidence_interval()
    return f"{mean(values):{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


if __name__ == "__main__":
    main()
