"""Prints the results of a finished study of objectives: the Markdown tables of docs/science/dapt-tapt.md.

The tables have the tokens and losses of each training run, and the dev scores of seed 0 by learning rate. They also
have the test scores of the other seeds for each way of training at its best learning rate, with gains over the chain's
baseline, paired by seed.

python -m benchmarks.objectives_study benchmarks/objectives_study.yaml [--csv FILE] [options of dontstop chain]
python -m benchmarks.objectives_study benchmarks/decoder_study.yaml [--csv FILE] [options of dontstop chain]
"""

from adapt.show.blocks import Cell, Table
from adapt.show.report.study import Study
from benchmarks.rtd_study import show_study


def trained(finished: Study) -> Table:
    """Makes the table of training runs: tokens, compute and losses, with a row per way of training, rate and seed."""
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


if __name__ == "__main__":
    show_study("Objectives at equal compute", trained)
