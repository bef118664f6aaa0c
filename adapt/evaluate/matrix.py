"""Stage `compare`: the held-out losses of several models on several domains (Don't Stop Pretraining, table 12)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from adapt.console import log
from adapt.errors import DataError
from adapt.evaluate.heatmap import draw_heatmap
from adapt.evaluate.measure import read_losses
from adapt.evaluate.results import Ends, ModelsCompared, Rows
from adapt.evaluate.statistics import Estimate, change, mean_loss
from adapt.runner.files import write_atomically

FILE, PICTURE = "matrix.json", "matrix.png"
FEW_DOCUMENTS = 30
"""With fewer held-out documents than these, an interval says little."""
Grid = list[list[Estimate]]


def compare_models(
    evaluations: Mapping[str, Path], domains: Sequence[str], samples: int, folder: Path
) -> ModelsCompared:
    """Lays the losses of models side by side; the first model is what the others are compared to.

    The change on a domain that the models were not adapted to, such as general text, is what they have forgotten of it.

    Args:
        evaluations: folders of `evaluate` stages by the model's name, all on the same documents and masks.
        domains: names of the corpora in them.
        samples: bootstrap resamples.
        folder: gets matrix.json and matrix.png.

    Raises:
        DataError: a domain has no held-out text.
    """
    losses = {
        model: [read_losses(evaluation, domain) for domain in domains] for model, evaluation in evaluations.items()
    }
    first = next(iter(losses.values()))
    documents = {domain: len(counts) for domain, (_, counts) in zip(domains, first, strict=True)}
    _check_sizes(documents)
    loss: Grid = [[mean_loss(totals, counts, samples) for totals, counts in row] for row in losses.values()]
    difference: Grid = [
        [change(before, after, counts, samples) for (before, counts), (after, _) in zip(first, row, strict=True)]
        for row in losses.values()
    ]
    low, high = _ends(loss)
    change_low, change_high = _ends(difference)
    compared = ModelsCompared(
        models=list(losses),
        domains=list(domains),
        documents=documents,
        loss=_values(loss),
        loss_low=low,
        loss_high=high,
        change=_values(difference),
        change_low=change_low,
        change_high=change_high,
    )
    measured = {name: value for name, value in asdict(compared).items() if value}  # what is no loss is measured later
    write_atomically(folder / FILE, json.dumps(measured, indent=1))
    draw_heatmap({"loss": compared.loss, "change": compared.change}, domains, folder / PICTURE, list(losses))
    return compared


def _check_sizes(documents: Mapping[str, int]) -> None:
    fix = "raise corpus.heldout_fraction: a corpus that is only measured on may be held out almost whole"
    for domain, count in documents.items():
        if not count:
            raise DataError(f"{domain} has no held-out text to compare models on", fix)
        if count < FEW_DOCUMENTS:
            log(f"{domain} has {count} held-out documents, too few for a sound interval; {fix}")


def _values(grid: Grid) -> Rows:
    return [[estimate.value for estimate in row] for row in grid]


def _ends(grid: Grid) -> tuple[Ends, Ends]:
    return [[estimate.low for estimate in row] for row in grid], [[estimate.high for estimate in row] for row in grid]
