"""Stage `evaluate`: one model on the held-out samples of some corpora, as a Ray task."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config import Config
from adapt.evaluate.ready import call_on_device, ready
from adapt.evaluate.results import TextLoss
from adapt.model.locate import Pretrained
from adapt.runner.files import write_atomically

if TYPE_CHECKING:
    from adapt.evaluate.per_byte import TextLosses

LOSSES_FILE = "losses.json"
"""For each corpus, and each document of the sample: summed loss, number of predictions, tokens that could be predicted,
and where that is known bytes of text."""
EXAMPLES_FILE = "examples.json"
"""Held-out sentences of the domain with a word for the model to guess."""

Routes = tuple[float | None, float | None, float | None]
"""`routed`, `routed_right` and `mixed` of a `TextLoss`."""


@dataclass(frozen=True)
class Measurement:
    """What is to be measured."""

    config: Config
    pretrained: Pretrained
    """The model."""
    corpora: dict[str, str]
    """Name -> folder of a prepared corpus; the examples are of the first."""
    overlaps: dict[str, int | None]
    """Name -> how many of its held-out documents the model was trained on; see `adapt.evaluate.overlap`."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Name -> the domain that it is of, where that is known."""


def measure(measurement: Measurement, folder: Path) -> dict[str, TextLoss]:
    """Measures each corpus on the cluster this process is connected to; writes its documents' losses into `folder`."""
    losses, routes, examples = call_on_device(_measure, measurement.config.resources, measurement)
    write_atomically(folder / LOSSES_FILE, json.dumps(losses))
    write_atomically(folder / EXAMPLES_FILE, json.dumps(examples, indent=1, ensure_ascii=False))
    return {name: _summed(values, measurement.overlaps[name], routes[name]) for name, values in losses.items()}


def _summed(values: dict[str, list[float]], overlap: int | None, routes: Routes) -> TextLoss:
    predictions = sum(values["counts"])
    loss = sum(values["losses"]) / predictions if predictions else None
    per_byte = None
    if loss is not None and "sizes" in values:
        per_byte = loss * sum(values["predictable"]) / sum(values["sizes"])
    return TextLoss(loss, len(values["counts"]), int(predictions), overlap, *routes, loss_per_byte=per_byte)


def _measure(
    measurement: Measurement,
) -> tuple[dict[str, dict[str, list[float]]], dict[str, Routes], list[dict[str, Any]]]:
    config = measurement.config
    is_causal = config.objective.kind == "causal"
    loaded = ready(measurement.pretrained, is_causal, config.resources.trainings)  # before torch: it hides GPUs
    model, tokenizer, device = loaded.model, loaded.tokenizer, loaded.device

    from adapt.evaluate.by_domain import losses_by_domain
    from adapt.evaluate.fill import filled_masks, next_words
    from adapt.evaluate.mlm_loss import SAMPLE_SEED, Heldout, predictable_tokens
    from adapt.objective.build import make

    objective = make(config.objective, tokenizer, SAMPLE_SEED)
    losses: dict[str, dict[str, list[float]]] = {}
    routes: dict[str, Routes] = {}
    examples: list[dict[str, Any]] = []
    for name, corpus in measurement.corpora.items():
        sample = Heldout.sample(Path(corpus), config.evaluation, objective.columns())
        own = measurement.domains.get(name)
        found = losses_by_domain(model, objective, sample, config.evaluation, device, own)
        losses[name] = {"losses": found.losses.tolist(), "counts": found.counts.tolist()}
        if sample.sizes is not None:
            predictable = predictable_tokens(objective, sample, config.evaluation)
            losses[name] |= {"predictable": predictable.tolist(), "sizes": np.array(sample.sizes).tolist()}
        routes[name] = found.routed, found.routed_right, found.mixed
        if not examples:
            show = next_words if is_causal else filled_masks
            examples = show(model, tokenizer, sample, config.evaluation.examples, device)
    return losses, routes, examples


def read_losses(folder: Path, corpus: str) -> tuple[np.ndarray, np.ndarray]:
    """What `measure` wrote for a corpus: summed losses and counts of its documents."""
    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    return np.array(values["losses"]), np.array(values["counts"])


def read_text_losses(folder: Path, corpus: str) -> "TextLosses | None":
    """All that `measure` wrote for a corpus; None where the length of its texts was not known."""
    from adapt.evaluate.per_byte import TextLosses

    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    if "sizes" not in values:
        return None
    return TextLosses(*(np.array(values[name]) for name in ("losses", "counts", "predictable", "sizes")))
