"""Checks that, with equal settings, our loop and transformers' Trainer reach equal losses at equal numbers of tokens.

Both sides train on the same blocks in the same order, so their losses at the same step are compared. The sides differ
in how masks and dropout are drawn, and only our side separates documents. The figure is the mean difference over the
last two thirds of the steps, in standard errors. No time is measured, so each side runs once.
"""

import statistics
from pathlib import Path

from benchmarks import ours, peer
from benchmarks.common import ROOT, Options, Result, apart, main, quick_precision
from benchmarks.texts import Case

TARGETS = {"difference_in_standard_errors": ("<=", 2.0)}
PLOT = ROOT / "docs" / "figures" / "same_loss.png"


def measure(options: Options) -> Result:
    """Trains each side once, and compares the losses."""
    steps = 30 if options.quick else 90
    case = Case("small", "grouped", 16, 128, options.data, options.models)
    curves = {
        "ours": apart(ours.train, case, apart(quick_precision), steps - 1, 1)["losses"],
        "Trainer": apart(peer.train, case, True, steps - 1, 1, False, "sequential")["losses"],
    }
    last = steps * 2 // 3
    pairs = list(zip(*(losses[-last:] for losses in curves.values()), strict=True))
    differences = [one - other for one, other in pairs]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / last**0.5
    if not options.quick:
        plot(curves, case, PLOT)
    details = [
        (f"{who}: loss over the last {last} steps", f"{statistics.mean(losses[-last:]):.3f}")
        for who, losses in curves.items()
    ]
    details.append(("ours - Trainer", f"{mean:+.4f}, standard error {error:.4f}"))
    return Result({"difference_in_standard_errors": abs(mean) / error}, details)


def plot(curves: dict[str, list[float]], case: Case, file: Path) -> None:
    """Plots the losses of both sides against the number of tokens."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for who, losses in curves.items():
        axes.plot([case.tokens_per_step * (step + 1) / 1000 for step in range(len(losses))], losses, label=who, lw=1)
    axes.set(
        xlabel="thousand tokens", ylabel="masked-LM loss [nats]", title="6 layers of 384, bf16, 2,048 tokens a step"
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main("same_loss", TARGETS, measure)
