"""A matrix over domains, or over models and domains, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MATRICES = {
    "overlap": "overlap of the top 10,000 words",
    "jaccard": "Jaccard index of all words",
    "cross_loss": "cross loss of a unigram model [nats]",
    "model_loss": "held-out loss of the models [nats]",
    "loss": "held-out loss [nats a predicted token]",
    "change": "change against the first model [nats]",
    "byte_loss": "held-out loss [nats a byte]",
    "byte_change": "change against the first model [nats a byte]",
}
"""Name -> title."""
SIGNED = ("change", "byte_change")
"""Matrices whose cells are better or worse than 0."""
FINE = ("byte_loss", "byte_change")
"""Matrices of small numbers."""


def draw_heatmap(
    matrices: Mapping[str, Sequence[Sequence[float]]],
    domains: Sequence[str],
    file: Path,
    models: Sequence[str] | None = None,
) -> None:
    """Writes heatmaps side by side as PNG, each cell with its number.

    Args:
        matrices: by name, one of MATRICES; columns are the domains, and rows too unless there are models.
        domains: names.
        file: to write.
        models: names of the rows.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot

    rows = domains if models is None else models
    width, height = 1.8 + 0.75 * len(domains), 2.3 + 0.75 * len(rows)
    figure, axes = pyplot.subplots(
        1, len(matrices), figsize=(width * len(matrices), height), layout="constrained", squeeze=False
    )
    for axis, (name, matrix) in zip(axes[0], matrices.items(), strict=True):
        _draw_cells(axis, matrix, name in SIGNED, 3 if name in FINE else 2)
        axis.set_xticks(range(len(domains)), domains, rotation=45, ha="right")
        axis.set_yticks(range(len(rows)), rows)
        axis.set_title(MATRICES[name], fontsize=10)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draw_cells(axis: Any, matrix: Sequence[Sequence[float]], signed: bool, digits: int) -> None:
    """Draws colours and numbers. If these have a sign, 0 is white, better (lower) ones are blue and worse ones red."""
    most = max((abs(value) for values in matrix for value in values), default=0) or 1
    image = axis.imshow(matrix, **({"cmap": "RdBu_r", "vmin": -most, "vmax": most} if signed else {"cmap": "Blues"}))
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            depth = image.norm(value)  # from 0, the first colour, to 1, the last
            dark = abs(2 * depth - 1) > 0.6 if signed else depth > 0.5
            text = f"{value:{'+' if signed else ''}.{digits}f}"
            axis.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
