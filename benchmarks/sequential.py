"""Runs a sequential study to its end, and writes its raw scores and verdicts to a small JSON file.

A sequential study adds seeds in rounds until its comparisons are decided. If the command is killed, running it again
continues the study. The file is also written if a stage fails.

python -m benchmarks.sequential benchmarks/study_labels.yaml --out FILE.json [options of dontstop chain]
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapt.chain.chain_file import read_command
from adapt.chain.chain_run import ChainRun, Report
from adapt.show.renderers import show_blocks
from adapt.show.report.sequence_runs import MEASURES, sequences_of
from adapt.show.report.study import Study
from adapt.show.report.study_results import collect
from adapt.terminal.console import run_job
from adapt.tuning.search_stage import Searched

DIGITS = 5


def raw(run: ChainRun, found: Study) -> dict[str, Any]:
    """Returns the scores by seed, metrics of domain sequences, tuned values, losses, interim comparisons, and cost."""
    results, sequences = collect(found), sequences_of(found)
    scores = {
        row.name: {
            recipe: {str(metrics["seed"]): round(metrics["score"], DIGITS) for metrics in group.metrics}
            for recipe, group in row.groups.items()
        }
        for row in results.rows
    }
    names = [measure.name for measure in MEASURES]
    figures = {
        method: {
            str(each.seed): {name: _rounded(each.figures[name]) for name in names if each.figures.get(name) is not None}
            for each in runs
        }
        for method, runs in sequences.methods.items()
    }
    searches = {
        entry.label: entry.result.best_row.settings
        for entry in found.entries
        if entry.record.stage == "search" and isinstance(entry.result, Searched)
    }
    losses = {
        entry.label: {
            "tokens": entry.result.tokens,
            "device_hours": _rounded(entry.record.cost.get("device_hours")),
            **{
                text: {"before": _rounded(loss.before.value), "after": _rounded(loss.after.value)}
                for text, loss in entry.result.losses.items()
            },
        }
        for entry in found.entries
        if entry.record.stage == "export"
    }
    hours = sum(entry.record.cost.get("device_hours") or 0.0 for entry in found.entries)
    return {
        "study": found.name,
        "models": found.models,
        "baseline": found.baseline,
        "margin": asdict(found.margin),
        "sequential": asdict(run.file.rounds) if run.file.rounds else None,
        "missing": len(found.missing),
        "device_hours": round(hours, 3),
        "tuned": searches,
        "scores": scores,
        "figures": figures,
        "losses": losses,
        "looks": [asdict(looked) for looked in found.looks or ()],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def write(run: ChainRun, report: Report, file: Path) -> None:
    """Writes the JSON with one line per first-level entry."""
    content = raw(run, report.study)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    arguments = sys.argv[1:]
    if "--out" not in arguments[:-1]:
        raise SystemExit("name the file of the results: --out FILE.json")
    place = arguments.index("--out")
    file = Path(arguments[place + 1])
    command = read_command(["run", *arguments[:place], *arguments[place + 2 :]])
    run = ChainRun.of(command.file, command.let, command.common, command.only)
    try:
        run.finish()
    finally:
        report = run.report()
        write(run, report, file)
    show_blocks(report.first_blocks())


if __name__ == "__main__":
    run_job(main)
