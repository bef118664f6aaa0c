"""Runs a sequential study to its end, and writes its raw scores and verdicts to a small JSON file.

A sequential study adds seeds in rounds until its comparisons are decided. If the command is killed, running it again
continues the study. The file is also written if a stage fails.

python -m benchmarks.sequential benchmarks/study_labels.yaml --out FILE.json [options of dontstop chain]

--recipes A,B runs only these recipes and the stages that they need, and --seeds N looks only once, at N seeds. Verdicts
are then corrected for these recipes only, so choose them before the study runs. --baseline A compares with another
recipe than the file's baseline. --plan shows what would run, and runs nothing.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from adapt.chain.chain_file import ChainFile, read_chain, read_command
from adapt.chain.chain_run import ChainRun, Report
from adapt.show.renderers import show_blocks
from adapt.show.report.sequence_runs import MEASURES, SequenceRun, sequences_of
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
    figures = {method: _by_seed(runs, names) for method, runs in sequences.methods.items()}
    searches = {
        entry.label: entry.result.best_row.settings
        for entry in found.entries
        if entry.record.stage == "search" and isinstance(entry.result, Searched)
    }
    losses = {
        entry.label: {
            "tokens": entry.result.tokens,
            "device_hours": _rounded(whole_hours(entry.record.cost, entry.result.tokens)),
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


def _by_seed(runs: Sequence[SequenceRun], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Returns the metrics of sequences, keyed by seed: means over the orders of domains."""
    by_seed: dict[str, list[Mapping[str, float | None]]] = {}
    for run in runs:
        by_seed.setdefault(str(run.seed), []).append(run.figures)
    known = {
        seed: {name: [value for of in figures if (value := of.get(name)) is not None] for name in names}
        for seed, figures in by_seed.items()
    }
    return {
        seed: {name: _rounded(fmean(values)) for name, values in of.items() if values} for seed, of in known.items()
    }


def whole_hours(cost: Mapping[str, Any], tokens: int) -> float | None:
    """Returns the device-hours that a training run would take without the steps of a shorter run (schedule `wsd`).

    Args:
        cost: cost of the run's own steps.
        tokens: tokens of all steps, including those of the shorter run.
    """
    hours, own = cost.get("device_hours"), cost.get("tokens")
    return hours * tokens / own if hours and own else hours


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def write(run: ChainRun, report: Report, file: Path) -> None:
    """Writes the JSON with one line per first-level entry."""
    content = raw(run, report.study)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{{\n{lines}\n}}\n")


def smaller(file: ChainFile, options: Mapping[str, str]) -> ChainFile:
    """Returns the chain file with only some recipes, another baseline, and only one look.

    Args:
        file: the chain file.
        options: values of the options `recipes`, `baseline` and `seeds`. Options without a value change nothing.
    """
    known, names = file.sets["recipe"], options.get("recipes", ",".join(file.sets["recipe"])).split(",")
    baseline = options.get("baseline", file.baseline)
    if wrong := [name for name in names if name not in known]:
        raise SystemExit(f"--recipes: unknown: {', '.join(wrong)}; choose from {', '.join(known)}")
    if baseline not in names:
        raise SystemExit(f"the baseline {baseline} is not among the recipes {', '.join(names)}")
    file = replace(file, baseline=baseline, sets={**file.sets, "recipe": {name: known[name] for name in names}})
    if file.rounds and (seeds := options.get("seeds")):
        file = replace(file, rounds=replace(file.rounds, first_seeds=int(seeds), max_seeds=int(seeds)))
    return file


def split_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the values of this program's options, keyed by name, and the arguments of `dontstop chain`."""
    own, rest = dict[str, str](), list(arguments)
    for name in ("out", "recipes", "seeds", "baseline"):
        if f"--{name}" in rest[:-1]:
            place = rest.index(f"--{name}")
            own[name] = rest[place + 1]
            del rest[place : place + 2]
    if "--plan" in rest:
        own["plan"] = "yes"
        rest.remove("--plan")
    return own, rest


def main() -> None:
    options, arguments = split_options(sys.argv[1:])
    if "out" not in options and "plan" not in options:
        raise SystemExit("name the file of the results: --out FILE.json")
    command = read_command(["run", *arguments])
    file = smaller(read_chain(command.file, command.let, command.common), options)
    run = ChainRun(
        file, {**command.only, "recipe": list(file.sets["recipe"])} if "recipes" in options else command.only
    )
    if "plan" in options:
        print(run.plan())
        return
    try:
        run.finish()
    finally:
        report = run.report()
        write(run, report, Path(options["out"]))
    show_blocks(report.first_blocks())


if __name__ == "__main__":
    run_job(main)
