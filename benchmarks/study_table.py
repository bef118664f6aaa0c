"""Prints the tables of a sequential study for the documentation, from the JSON file that benchmarks.sequential writes.

python -m benchmarks.study_table docs/science/data/forgetting_part.json
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from adapt.show.blocks import NONE, Cell, Table, worded_interval
from adapt.show.renderers import markdown_table
from adapt.show.report.look_texts import WORDS
from adapt.show.report.sequence_runs import MEASURES, Measure
from adapt.statistics.comparison import p_value
from adapt.statistics.seeds import Looked, endings

SCORE = Measure("", "score", is_change=False)


def table(study: Mapping[str, Any]) -> Table:
    """Makes the table: a row per compared metric or task, and recipe.

    Args:
        study: content of the JSON file.
    """
    looks = TypeAdapter(list[Looked]).validate_python(study["looks"])
    rows: list[list[Cell | str]] = []
    named = set[str]()
    for (name, figure, recipe), ending in endings(looks).items():
        measure = next((each for each in MEASURES if each.name == figure), SCORE)
        seen, title = ending.seen, measure.title if figure else name
        if title not in named:
            named.add(title)
            rows.append([title, study["baseline"], _mean(study, measure, name, study["baseline"]), "", "", ""])
        rows.append(
            [
                "",
                recipe,
                _mean(study, measure, name, recipe),
                Cell(measure.change(seen.difference), worded_interval(seen.low, seen.high, measure.change)),
                NONE if seen.p is None else p_value(seen.p, bare=True),
                f"{WORDS[seen.conclusion]}, {ending.seeds} seeds",
            ]
        )
    return Table(["", "recipe", "mean", f"against {study['baseline']}", "p", "verdict"], rows)


def losses(study: Mapping[str, Any]) -> Table | None:
    """Makes the table of held-out losses: a row for the base model, and a row per model that the study trained.

    Shows the cost of each training run in device-minutes.

    Returns None if the study measured no losses, or if models were measured on different texts, so that the base model
    has several losses.

    Args:
        study: content of the JSON file.
    """
    measured = list(study["losses"].values())
    if not measured or any(of.keys() != measured[0].keys() for of in measured):
        return None
    texts = [text for text in measured[0] if text not in ("tokens", "device_hours")]
    before = {tuple(of[text]["before"] for text in texts) for of in measured}
    if len(before) > 1:
        return None
    rows = [["base", "0", "0", *(f"{loss:.3f}" for loss in before.pop())]]
    for label, of in study["losses"].items():
        hours = of["device_hours"]
        minutes = NONE if hours is None else f"{60 * hours:.1f}"
        rows.append([label, f"{of['tokens'] / 1e6:.1f} M", minutes, *(f"{of[text]['after']:.3f}" for text in texts)])
    return Table(["model", "tokens", "minutes", *(f"loss, {text}" for text in texts)], rows)


def markdown(study: Mapping[str, Any]) -> str:
    """Renders the tables of a study."""
    return "\n\n".join(markdown_table(each) for each in (table(study), losses(study)) if each)


def _mean(study: Mapping[str, Any], measure: Measure, row: str, recipe: str) -> str:
    """Formats the mean over seeds of a recipe's metric of sequences or, for other metrics, of its scores on a task."""
    if measure is SCORE:
        values = list(study["scores"][row][recipe].values())
    else:
        values = [seed[measure.name] for seed in study["figures"][recipe].values() if measure.name in seed]
    return measure.text(fmean(values))


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
