"""A square matrix over domains as a picture."""

from collections.abc import Sequence
from pathlib import Path

MATRICES = {
    "overlap": "overlap of the top 10,000 words",
    "jaccard": "Jaccard index of all words",
    "cross_loss": "cross loss of a unigram model [nats]",
    "model_loss": "held-out loss of the models [nats]",
}
"""Name -> title."""


def draw(matrices: dict[str, Sequence[Sequence[float]]], domains: Sequence[str], file: Path) -> None:
    """Writes heatmaps side by side as PNG, each cell with its number.

    Args:
        matrices: by name, one of MATRICES; rows and columns are the domains.
        domains: names.
        file: to write.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot

    side = 1.8 + 0.75 * len(domains)
    figure, axes = pyplot.subplots(
        1, len(matrices), figsize=(side * len(matrices), side + 0.5), layout="constrained", squeeze=False
    )
    for axis, (name, matrix) in zip(axes[0], matrices.items(), strict=True):
        image = axis.imshow(matrix, cmap="Blues")
        middle = (image.norm.vmin + image.norm.vmax) / 2
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                shade = "white" if value > middle else "black"
                axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade, fontsize=9)
        axis.set_xticks(range(len(domains)), domains, rotation=45, ha="right")
        axis.set_yticks(range(len(domains)), domains)
        axis.set_title(MATRICES[name], fontsize=10)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
