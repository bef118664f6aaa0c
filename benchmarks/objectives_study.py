"""Prints the results of a finished study of objectives: the Markdown tables of docs/science/dapt-tapt.md.

The tables have the tokens and losses of each training, the dev scores by learning rate, and the test scores of each way
at its best rate, with gains over the chain's baseline, paired by seed.

python -m benchmarks.objectives_study benchmarks/objectives_study.yaml [options of dontstop chain]
python -m benchmarks.objectives_study benchmarks/decoder_study.yaml [options of dontstop chain]
"""

import sys

from adapt.chain.chain_file import read_chain, read_command
from adapt.chain.chain_nodes import expand_chain
from adapt.chain.chain_stages import build_chain, study
from adapt.show.blocks import Cell, Section, Table
from adapt.show.pages import render_markdown
from adapt.show.report.study import Study
from benchmarks.rtd_study import Scores, at_best, best_rates, by_rate
from benchmarks.selection_study import gains


def trained(finished: Study) -> Table:
    """Makes the table of the trainings: tokens, compute and held-out losses, with a row per way, rate and seed."""
    rows: list[list[Cell | str]] = []
    for entry in finished.entries:
        values = entry.values
        if entry.record.stage == "export" and "rate" in values:
            losses = [entry.result.losses.get(name) for name in ("domain", "general")]
            rows.append(
                [
                    values.get("way", values.get("recipe", "")),
                    *(values[name] for name in ("rate", "seed")),
                    f"{entry.result.tokens:,}",
                    f"{entry.result.flops:.2g}" if entry.result.flops else "",
                    *(f"{loss.after.value:.3f}" if loss else "" for loss in losses),
                ]
            )
    header = ["way", "rate", "seed", "tokens", "FLOPs", "held-out loss", "loss on general text"]
    return Table(header, rows, "Trainings", "Losses of encoders have 15% of the tokens masked, in nats per prediction.")


def scored(finished: Study) -> Scores:
    """Returns the dev and test scores of all fine-tunings, by recipe and rate."""
    found: Scores = {}
    for entry in finished.entries:
        if entry.record.stage == "finetune":
            values, metrics = entry.values, entry.record.metrics
            row = values["task"], values["seed"], metrics["dev_score"], metrics["score"]
            found.setdefault((values["recipe"], values["rate"]), []).append(row)
    return found


def main() -> None:
    command = read_command(["report", *sys.argv[1:]])
    recipe = read_chain(command.file, command.let, command.common)
    finished = study(recipe.name, recipe.baseline, build_chain(expand_chain(recipe, command.only)))
    found = scored(finished)
    if not found:
        raise SystemExit(f"nothing of {command.file} has been fine-tuned: {len(finished.missing)} stages have not run")
    chosen = at_best(found, best_rates(found))
    compared = [gains(chosen, recipe.baseline)] if recipe.baseline in chosen.scores else []
    about = f"{len(finished.entries)} stages, {len(finished.missing)} not run"
    tables = [trained(finished), by_rate(found), *compared]
    print(render_markdown(recipe.name, about, [Section("Objectives at equal compute", tables)]))


if __name__ == "__main__":
    main()
