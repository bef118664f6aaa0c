"""Stage `evaluate`: the losses of one model on the held-out samples of some corpora, measured in a Ray task.

Also the check that no measured document was trained on: the number should be 0, and it is counted from the keys of both
sides, not inferred from how text was held out when it was prepared. This module loads no torch: the driver only reads
what was measured, and the task must hide GPUs before torch is imported.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray

from adapt.config import Config, ResourcesConfig
from adapt.corpus.heldout import Measured
from adapt.evaluate.intervals import TextLosses
from adapt.evaluate.measurements import BITS_PER_NAT, TextLoss
from adapt.model.locate import Pretrained
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.runner import Record
from adapt.runner.files import write_atomically
from adapt.runner.outputs import check_content
from adapt.runner.record import load_record
from adapt.terminal.console import log

T = TypeVar("T")


def call_on_device(function: Callable[..., T], resources: ResourcesConfig, *arguments: Any) -> T:
    """Calls a function in a Ray task that has one of the cluster's devices, and waits for it."""
    task = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(function)
    with user_errors():
        result: T = ray.get(task.remote(*arguments))
        return result


MADE_BY = {"train": "start.training", "export": "training", "finetune": "start.training", "merge": "start.training"}
"""For each kind of stage that hands over a model, the input that is the training behind it; a merge has several."""


def overlaps(corpora: Mapping[str, Path], trained: Sequence[Path] | None) -> dict[str, int | None]:
    """For each corpus: how many of its held-out documents stand in what a model was trained on; None: not known.

    Args:
        corpora: folders of prepared corpora that are measured, by name.
        trained: folders of what the model was trained on, see `trained_on`.
    """
    if trained is None:
        return dict.fromkeys(corpora)
    for record in filter(None, map(load_record, trained)):
        check_content(record)
    counts = {name: Measured.of([folder]).count_in(trained) for name, folder in corpora.items()}
    for name, count in counts.items():
        if count:
            log(f"warning: the model was trained on {count} of the documents that are measured as {name}")
    return {**counts}


def trained_on(maker: Record | None) -> list[Path] | None:
    """Folders of the prepared texts that a model was trained on, in all trainings up to it.

    Args:
        maker: the record of what made the model, `train`, `export`, `finetune` or `merge`; with it come the trainings
            that this began with. None where there is no record.

    Returns:
        None where that is not known: a record is gone, text was streamed, which leaves no keys behind, or a model that
        was merged came from elsewhere.
    """
    if maker is None:
        return None
    texts: list[Path] = []
    for folder in _texts_of(maker):
        text = load_record(folder)
        if text is None or text.what.get("streaming"):
            return None
        texts.append(text.path)
    merged = [made for name, made in maker.inputs.items() if name.startswith("models.")]
    if len(merged) < len(maker.what.get("models", ())) and maker.stage == "merge":
        return None
    before = maker.inputs.get(MADE_BY.get(maker.stage, ""))
    for made in [*([before] if before else []), *(merged if maker.stage == "merge" else [])]:
        earlier = trained_on(load_record(Path(made["path"])))
        if earlier is None:
            return None
        texts += [text for text in earlier if text not in texts]
    return texts


def _texts_of(maker: Record) -> list[Path]:
    """What the stage itself trained on: `corpora` and `replay` of `adapt.stage.train.Train`."""
    if maker.stage != "train":
        return []
    return [
        Path(text["path"]) for name, text in maker.inputs.items() if name == "replay" or name.startswith("corpora.")
    ]


LOSSES_FILE = "losses.json"
"""For each corpus, and each document of the sample: summed loss, number of predictions, tokens that could be predicted,
and where that is known bytes of text."""
EXAMPLES_FILE = "examples.json"
"""Held-out sentences of the domain with a word for the model to guess."""

Routes = tuple[float | None, float | None, float | None]
"""`routed`, `routed_right` and `mixed` of a `TextLoss`."""


MeasuredCorpora = tuple[dict[str, dict[str, list[float]]], dict[str, Routes], list[dict[str, Any]]]
"""By corpus what LOSSES_FILE holds, by corpus its routes, and the examples."""


@dataclass(frozen=True)
class Measurement:
    """What is to be measured."""

    config: Config
    pretrained: Pretrained
    """The model."""
    corpora: dict[str, str]
    """Name -> folder of a prepared corpus; the examples are of the first."""
    overlaps: dict[str, int | None]
    """Name -> how many of its held-out documents the model was trained on; see `adapt.evaluate.measure_model`."""
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
    bits = None
    if loss is not None and "sizes" in values:
        bits = BITS_PER_NAT * loss * sum(values["predictable"]) / sum(values["sizes"])
    return TextLoss(loss, len(values["counts"]), int(predictions), overlap, *routes, bits_per_byte=bits)


def _measure(measurement: Measurement) -> MeasuredCorpora:
    """In a Ray task, whose driver loads no torch."""
    hide_unreserved_gpus()
    from adapt.evaluate.evaluation_task import measure_corpora

    return measure_corpora(measurement)


def read_losses(folder: Path, corpus: str) -> tuple[np.ndarray, np.ndarray]:
    """What `measure` wrote for a corpus: summed losses and counts of its documents."""
    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    return np.array(values["losses"]), np.array(values["counts"])


def read_text_losses(folder: Path, corpus: str) -> TextLosses | None:
    """All that `measure` wrote for a corpus; None where the length of its texts was not known."""
    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    if "sizes" not in values:
        return None
    return TextLosses(*(np.array(values[name]) for name in ("losses", "counts", "predictable", "sizes")))
