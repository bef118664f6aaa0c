"""Stage `evaluate`: measures the losses of one model on held-out samples of some corpora, in a Ray task.

The module also compares keys of documents, to count the measured documents that the model was trained on. This count
should be 0. This module does not import torch: the driver does not need it, and the task must hide GPUs before it
imports torch.
"""

import json
import re
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
from adapt.ray.node_files import OnNode, call
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, telling_stalls, user_errors
from adapt.runner import Record
from adapt.runner.files import write_atomically
from adapt.runner.mirror import at_hand
from adapt.runner.outputs import check_content
from adapt.runner.record import load_record
from adapt.support.heartbeat import Steady
from adapt.terminal.console import log

T = TypeVar("T")


def call_on_device(function: Callable[..., T], resources: ResourcesConfig, folder: Path, *arguments: Any) -> T:
    """Calls a function in a Ray task that reserves one device of the cluster, and returns its result.

    Args:
        function: function of a module.
        resources: determines the share of a GPU.
        folder: folder of the stage. If a signal stops the task's process, that is recorded here, and Ray calls the
            function again.
        arguments: arguments of the function.
    """
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, gpus_per_worker(resources)))(call)
    steady = OnNode(Steady(function, "measuring", folder.absolute(), resources.stall_s, patient=True))
    with user_errors(), telling_stalls("evaluate", folder):
        result: T = ray.get(task.remote(steady, *arguments))
        return result


MADE_BY = {"export": "training", **dict.fromkeys(("train", "finetune", "merge", "top"), "start.training")}
"""Name of the input that leads to the model from which a stage started, keyed by the kind of the stage.

Merges have further inputs of this sort, `models.*`."""


HEAD = "head"
"""The kind of the stage that gives a model a new head, without training."""


def overlaps(corpora: Mapping[str, Path], trained: Sequence[Path] | None) -> dict[str, int | None]:
    """Counts, for each corpus, the held-out documents that a model was trained on. A count is None if it is not known.

    Args:
        corpora: folders of the measured prepared corpora, keyed by name.
        trained: folders of the texts that the model was trained on, see `trained_on`.
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
    """Returns the folders of the prepared texts that a model was trained on, in this and all earlier trainings.

    Args:
        maker: the record of the stage that produced the model: `train`, `export`, `finetune` or `merge`. Its inputs
            lead to the earlier trainings, and to those of its teachers. None if there is no record.

    Returns:
        None if the texts are not known: a record is missing, text was streamed (which stores no keys), or a merged
        model or a teacher was not produced by a stage.
    """
    if maker is None or _from_elsewhere(maker):
        return None
    texts: list[Path] = []
    for folder in _texts_of(maker):
        text = load_record(folder)
        if text is None or text.what.get("streaming"):
            return None
        texts.append(at_hand(text.path))
    merged = [made for name, made in maker.inputs.items() if name.startswith("models.")]
    if len(merged) < len(maker.what.get("models", ())) and maker.stage == "merge":
        return None
    taught = [made for name, made in maker.inputs.items() if re.fullmatch(r"teachers\.\d+\.training", name)]
    if len(taught) < len(maker.what.get("teachers", ())):
        return None
    before = maker.inputs.get(MADE_BY.get(maker.stage, ""))
    for made in [*([before] if before else []), *(merged if maker.stage == "merge" else []), *taught]:
        record = load_record(Path(made["path"]))
        if record and _from_elsewhere(record):  # its training texts are not known, so none are added
            continue
        earlier = trained_on(record)
        if earlier is None:
            return None
        texts += [text for text in earlier if text not in texts]
    return texts


def _from_elsewhere(maker: Record) -> bool:
    """Returns whether a stage gave a new head or new top layers to a model that no stage had trained."""
    return maker.stage == HEAD or (maker.stage == "top" and "start.training" not in maker.inputs)


def _texts_of(maker: Record) -> list[Path]:
    """Returns the folders of the stage's own training texts: `corpora` and `replay` of `adapt.stage.train.Train`."""
    if maker.stage != "train":
        return []
    return [
        Path(text["path"]) for name, text in maker.inputs.items() if name == "replay" or name.startswith("corpora.")
    ]


LOSSES_FILE = "losses.json"
"""File with up to four lists per corpus, which have a value per document of the sample: summed loss, number of
predictions, number of predictable tokens, and, if known, bytes of text."""
EXAMPLES_FILE = "examples.json"
"""File with held-out sentences of the domain and the model's predictions of one word in each."""
HITS_FILE = "hits.json"
"""File with a list per task: for each text that neighbours classified, 1 if its label was right and 0 if not."""

Routes = tuple[float | None, float | None, float | None]
"""`routed`, `routed_right` and `mixed` of a `TextLoss`."""


MeasuredCorpora = tuple[
    dict[str, dict[str, list[float]]], dict[str, Routes], dict[str, dict[str, float]], list[dict[str, Any]]
]
"""The content of LOSSES_FILE, the routes, and the objective's figures, each keyed by corpus; and the examples."""


@dataclass(frozen=True)
class Measurement:
    """The input of an evaluation: a model and the corpora on which it is measured."""

    config: Config
    pretrained: Pretrained
    """The model to measure."""
    corpora: dict[str, str]
    """Folders of prepared corpora, keyed by name. The examples are from the first corpus with suitable text."""
    overlaps: dict[str, int | None]
    """For each corpus, the number of held-out documents that the model was trained on; see `overlaps`."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Domains of the corpora, keyed by corpus. Corpora with an unknown domain have no entry."""
    first: Pretrained | None = None
    """The first model of the chain, whose generator replaces tokens in a measurement of replaced-token detection."""


def measure(measurement: Measurement, folder: Path) -> dict[str, TextLoss]:
    """Measures each corpus in a Ray task on the connected cluster, and writes the losses of documents to `folder`."""
    losses, routes, figures, examples = call_on_device(_measure, measurement.config.resources, folder, measurement)
    write_atomically(folder / LOSSES_FILE, json.dumps(losses))
    write_atomically(folder / EXAMPLES_FILE, json.dumps(examples, indent=1, ensure_ascii=False))
    return {
        name: _summed(values, measurement.overlaps[name], routes[name], figures[name])
        for name, values in losses.items()
    }


def _summed(
    values: dict[str, list[float]], overlap: int | None, routes: Routes, figures: dict[str, float] | None = None
) -> TextLoss:
    predictions = sum(values["counts"])
    loss = sum(values["losses"]) / predictions if predictions else None
    bits = None
    if loss is not None and "sizes" in values:
        bits = BITS_PER_NAT * loss * sum(values["predictable"]) / sum(values["sizes"])
    return TextLoss(
        loss, len(values["counts"]), int(predictions), overlap, *routes, bits_per_byte=bits, figures=figures or {}
    )


def _measure(measurement: Measurement) -> MeasuredCorpora:
    """Runs `measure_corpora` in the Ray task. Imports torch late, after Ray has hidden the GPUs of other tasks."""
    hide_unreserved_gpus()
    from adapt.evaluate.evaluation_task import measure_corpora

    return measure_corpora(measurement)


def read_losses(folder: Path, corpus: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads the summed losses and numbers of predictions of a corpus's documents, which `measure` wrote."""
    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    return np.array(values["losses"]), np.array(values["counts"])


def read_text_losses(folder: Path, corpus: str) -> TextLosses | None:
    """Reads the losses and text lengths that `measure` wrote; None if the lengths of the texts are not known."""
    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    if "sizes" not in values:
        return None
    return TextLosses(*(np.array(values[name]) for name in ("losses", "counts", "predictable", "sizes")))
