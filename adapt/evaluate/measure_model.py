"""Stage `evaluate`: measures the losses of models on held-out samples of some corpora, in a Ray task.

The module also compares keys of documents, to count the measured documents that the model was trained on. This count
should be 0. This module does not import torch: the driver does not need torch, and the Ray task must not import it
before Ray has hidden other tasks' GPUs.

Mean losses have bootstrap intervals over documents. Two tokenizers split a text differently, so models with different
tokenizers are compared by loss per byte. For every objective that masks tokens, also `whole_word`, held-out losses mask
single tokens (`adapt.objective.table.measured_objective`). This favours tokenizers that split words into more pieces,
because the other pieces of a masked word stay visible.

The prediction of an ensemble is the mean of its models' probabilities. The loss of a token x under the mean of k models
is -log(1/k sum_j p_j(x)). Each p_j sums to 1 over the vocabulary, and so does their mean, so only the probabilities of
the true tokens are needed. The models run on the device one after another, and one number per prediction is kept. So
memory does not grow with the vocabulary or the number of models.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adapt.config import Config, ResourcesConfig
from adapt.corpus.heldout import Measured
from adapt.evaluate.measurements import BITS_PER_NAT, FEWEST, Estimate, TextLoss
from adapt.model.locate import Pretrained
from adapt.ray import connection, node_files, runtime
from adapt.runner import Record, digest, mirror
from adapt.runner.files import write_atomically
from adapt.runner.record import load_record
from adapt.statistics.seeds import CONFIDENCE
from adapt.support.heartbeat import Steady
from adapt.terminal.console import log

T = TypeVar("T")


def call_on_device(
    function: Callable[..., T],
    resources: ResourcesConfig,
    folder: Path,
    *arguments: Any,
    batch_field: str | None = "evaluation.micro_batch",
) -> T:
    """Calls a function in a Ray task that reserves one device of the cluster, and returns its result.

    Args:
        function: function that is defined at the top level of a module.
        resources: determines the share of a GPU.
        folder: folder of the stage. A signal that stops the task's process is recorded there, and Ray then calls the
            function again.
        arguments: arguments of the function.
        batch_field: configuration field with the number of texts per pass, which users lower if memory runs out. None
            if there is no such field.

    Raises:
        DeviceMemoryError: a device or its machine ran out of memory.
    """
    ray = connection.ray_library()
    task: Any = ray.remote(num_cpus=1, num_gpus=min(1.0, runtime.gpus_per_worker(resources)))(node_files.call)
    steady = node_files.OnNode(Steady(function, "measuring", folder.absolute(), resources.stall_s, patient=True))
    with runtime.batch_errors(batch_field), runtime.telling_stalls("evaluate", folder):
        result: T = ray.get(task.remote(steady, *arguments))
        return result


MADE_BY = {"export": "training", **dict.fromkeys(("train", "finetune", "merge", "top"), "start.training")}
"""Name of the input that leads to earlier training runs, keyed by kind of stage: for an export, its training stage; for
other stages, the stage that produced the start model.

Merges also have the inputs `models.*`, one per merged model."""


HEAD = "head"
"""The kind of the stage that gives a model a new head, without training."""


def overlaps(corpora: Mapping[str, Path], trained: Sequence[Path] | None) -> dict[str, int | None]:
    """Counts, for each corpus, the held-out documents that a model was trained on. A count is None if it is not known.

    `trained` are the folders that `trained_on` returned.
    """
    if trained is None:
        return dict.fromkeys(corpora)
    for record in filter(None, map(load_record, trained)):
        digest.check_content(record)
    counts = {name: Measured.of([folder]).count_in(trained) for name, folder in corpora.items()}
    for name, count in counts.items():
        if count:
            log(f"warning: {count} of the held-out documents of {name} are also in the model's training text")
    return {**counts}


def trained_on(maker: Record | None) -> list[Path] | None:
    """Returns the folders of the prepared texts that a model was trained on, in its own and all earlier training runs.

    Args:
        maker: the record of the stage that produced the model: `train`, `export`, `finetune` or `merge`. Its inputs
            lead to the earlier training runs, and to the training runs of its teachers. None if there is no record.

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
        texts.append(mirror.at_hand(text.path))
    merged = [made for name, made in maker.inputs.items() if name.startswith("models.")]
    if len(merged) < len(maker.what.get("models", ())) and maker.stage == "merge":
        return None
    taught = [made for name, made in maker.inputs.items() if re.fullmatch(r"teachers\.\d+\.training", name)]
    if len(taught) < len(maker.what.get("teachers", ())):
        return None
    before = maker.inputs.get(MADE_BY.get(maker.stage, ""))
    for made in [*([before] if before else []), *(merged if maker.stage == "merge" else []), *taught]:
        record = load_record(Path(made["path"]))
        if record and _from_elsewhere(record):  # the original model's training texts are unknown, and are left out
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
"""File with up to four lists per corpus: summed loss, number of predictions, number of predictable tokens, and, if
known, bytes of text. Each list has one value per document of the sample."""
EXAMPLES_FILE = "examples.json"
"""File with held-out sentences of the domain and the model's predictions of one word in each."""
HITS_FILE = "hits.json"
"""File with a list per task: for each classified text, 1 if the nearest neighbours gave the right label, else 0."""

Routes = tuple[float | None, float | None, float | None]
"""The fields `routed`, `routed_right` and `mixed` of a `TextLoss`."""


MeasuredCorpora = tuple[
    dict[str, dict[str, list[float]]], dict[str, Routes], dict[str, dict[str, float]], list[dict[str, Any]]
]
"""Result of a measurement: the content of LOSSES_FILE, the `Routes`, the objective's further metrics (all three keyed
by corpus), and the example predictions."""


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
    """The first model of the chain. Its generator replaces tokens when replaced-token detection is measured."""


def measure(measurement: Measurement, folder: Path) -> dict[str, TextLoss]:
    """Measures each corpus in a Ray task on the connected cluster, and writes the losses of documents to `folder`."""
    measured: MeasuredCorpora = call_on_device(measure_here, measurement.config.resources, folder, measurement)
    losses, routes, figures, examples = measured
    write_atomically(folder / LOSSES_FILE, json.dumps(losses))
    write_atomically(folder / EXAMPLES_FILE, json.dumps(examples, indent=1, ensure_ascii=False))
    return {
        name: summed_losses(values, measurement.overlaps[name], routes[name], figures[name])
        for name, values in losses.items()
    }


def summed_losses(
    values: dict[str, list[float]], overlap: int | None, routes: Routes, figures: dict[str, float] | None = None
) -> TextLoss:
    """Returns the mean loss of a corpus from the values of its documents (the columns of `TextLosses`)."""
    predictions = sum(values["counts"])
    loss = sum(values["losses"]) / predictions if predictions else None
    bits = None
    if loss is not None and "sizes" in values:
        bits = BITS_PER_NAT * loss * sum(values["predictable"]) / sum(values["sizes"])
    return TextLoss(
        loss, len(values["counts"]), int(predictions), overlap, *routes, bits_per_byte=bits, figures=figures or {}
    )


Statistic = Callable[..., np.ndarray]
"""Function that computes a statistic from columns with one value per document, along an `axis`."""


def mean_loss(losses: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Estimates the token-weighted mean loss: sum of losses / sum of predictions, resampled by document.

    Args:
        losses: summed loss of each document [nats].
        counts: number of predictions in each document.
        samples: number of bootstrap resamples.
    """
    return with_interval(_ratio, (losses, counts), samples)


def with_interval(statistic: Statistic, columns: Sequence[np.ndarray], samples: int) -> Estimate:
    """Estimates a statistic of columns with one value per document, with a 95% bootstrap interval over documents."""
    value = float(statistic(*columns))
    if len(columns[0]) < FEWEST:
        return Estimate(value, None, None)
    from scipy.stats import bootstrap

    interval = bootstrap(
        columns,
        statistic,
        paired=True,
        n_resamples=samples,
        batch=max(1, 10_000_000 // len(columns[0])),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def _ratio(losses: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
    ratio: np.ndarray = losses.sum(axis) / counts.sum(axis)
    return ratio


def change(before: np.ndarray, after: np.ndarray, counts: np.ndarray, samples: int) -> Estimate:
    """Estimates the change of the mean loss between two models, paired by document (same documents and masks)."""
    return mean_loss(after - before, counts, samples)


@dataclass(frozen=True)
class TextLosses:
    """Losses of a model on documents. Each array has one value per document."""

    losses: np.ndarray
    """Loss of each document, summed over its predictions [nats]."""
    counts: np.ndarray
    """Number of predictions in each document."""
    predictable: np.ndarray
    """Number of tokens in each document that the objective may predict."""
    sizes: np.ndarray
    """Length of each document's text [bytes]."""

    def __getitem__(self, documents: slice) -> "TextLosses":
        """Returns the losses of the documents in a range of indices."""
        return TextLosses(*(column[documents] for column in self.columns))

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """All arrays, in the order of the fields."""
        return self.losses, self.counts, self.predictable, self.sizes

    def per_byte(self, axis: int = -1) -> np.ndarray:
        """Computes the loss in bits per byte of text: mean loss per token times predictable tokens per byte.

        A tokenizer with longer tokens has fewer tokens and a higher loss per token. Bits per byte include both effects.
        For causal models, which predict every token, this is -log2 of the text's probability, per byte of the text.
        """
        per_token = self.losses.sum(axis) / self.counts.sum(axis)
        bits: np.ndarray = BITS_PER_NAT * per_token * (self.predictable.sum(axis) / self.sizes.sum(axis))
        return bits


def byte_loss(measured: TextLosses, samples: int) -> Estimate:
    """Estimates the loss in bits per byte of text."""

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        return TextLosses(*columns).per_byte(axis)

    return with_interval(statistic, measured.columns, samples)


def byte_change(before: TextLosses, after: TextLosses, samples: int) -> Estimate:
    """Estimates the change in bits per byte between two models, which may have different tokenizers.

    Both models must have been measured on the same documents, because the change is paired by document.
    """

    def statistic(*columns: Any, axis: int = -1) -> np.ndarray:
        old, new = TextLosses(*columns[:4]), TextLosses(*columns[4:])
        difference: np.ndarray = new.per_byte(axis) - old.per_byte(axis)
        return difference

    return with_interval(statistic, (*before.columns, *after.columns), samples)


def read_losses(folder: Path, corpus: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads the summed losses and numbers of predictions of a corpus's documents, which `measure` wrote."""
    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    return np.array(values["losses"]), np.array(values["counts"])


def read_text_losses(folder: Path, corpus: str) -> TextLosses | None:
    """Reads the losses and text lengths that `measure` wrote; None if the lengths of the texts are not known."""
    return _columns(json.loads((folder / LOSSES_FILE).read_text())[corpus])


def _columns(values: Mapping[str, list[float]]) -> TextLosses | None:
    if "sizes" not in values:
        return None
    return TextLosses(*(np.array(values[name]) for name in ("losses", "counts", "predictable", "sizes")))


@dataclass(frozen=True)
class EnsembleMeasurement:
    """The input of the measurement: the models of an ensemble, and the corpora on which it is measured."""

    config: Config
    models: tuple[Pretrained, ...]
    """The models, which have the same tokenizer."""
    corpora: dict[str, str]
    """Folders of prepared corpora, keyed by name."""


def measure_ensemble(measurement: EnsembleMeasurement, folder: Path) -> None:
    """Measures each corpus in a Ray task, and writes the losses of documents to the same files as stage `evaluate`.

    Raises:
        ModelError: a model has separate parameters for each domain.
    """
    losses = call_on_device(measure_here, measurement.config.resources, folder, measurement)
    write_atomically(folder / LOSSES_FILE, json.dumps(losses))


class MeanProbability:
    """Adds up the probabilities that models give to the same true tokens, and returns the loss of their mean."""

    def __init__(self) -> None:
        self._logs: np.ndarray | None = None  # logarithm of the sum of the probabilities of each true token
        self._models = 0

    def add(self, losses: np.ndarray) -> None:
        """Adds the probabilities that one more model gives to the true tokens.

        Args:
            losses: -log of the probability that the model gives to each true token [nats], [predictions].
        """
        own = -losses.astype(np.float64)
        self._logs = own if self._logs is None else np.logaddexp(self._logs, own)
        self._models += 1

    def losses(self) -> np.ndarray:
        """Returns the loss of each prediction under the mean of the models' probabilities [nats], [predictions]."""
        assert self._logs is not None
        mixed: np.ndarray = np.log(self._models) - self._logs
        return mixed


def measure_here(measurement: Measurement | EnsembleMeasurement) -> Any:
    """Measures a model or an ensemble in the Ray task. Imports torch late, after Ray has hidden other tasks' GPUs."""
    runtime.hide_unreserved_gpus()
    from adapt.evaluate.evaluation_task import measure_corpora, measure_mean

    if isinstance(measurement, EnsembleMeasurement):
        return measure_mean(measurement)
    return measure_corpora(measurement)
