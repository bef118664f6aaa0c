"""Stage `evaluate`: the losses of one model on the held-out samples of some corpora, measured in a Ray task.

Also what other measurements share: loading a model on a device of the cluster. And the check that no measured document
was trained on: the number should be 0, and it is counted from the keys of both sides, not inferred from how text was
held out when it was prepared. This module loads no torch, because the task must hide GPUs before torch is imported.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from adapt.config import Config, ResourcesConfig
from adapt.corpus.heldout import Measured
from adapt.evaluate.measurements import TextLoss
from adapt.model.locate import Pretrained
from adapt.ray.runtime import gpus_per_worker, hide_unreserved_gpus, user_errors
from adapt.runner import Record
from adapt.runner.files import write_atomically
from adapt.runner.outputs import check_content
from adapt.runner.record import load_record
from adapt.terminal.console import log
from adapt.train.worker_process import use_threads

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from adapt.evaluate.intervals import TextLosses


T = TypeVar("T")


@dataclass(frozen=True)
class Ready:
    """A model, its tokenizer, and where the model is."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    device: "torch.device"


def ready(pretrained: Pretrained, causal: bool, shared_by: int = 1) -> Ready:
    """Inside a Ray task: loads a model onto the GPU that the task reserved, or the CPUs.

    Args:
        pretrained: the model.
        causal: whether it predicts the next token.
        shared_by: trainings and tasks that share the cores of a machine, this one among them.
    """
    hide_unreserved_gpus()
    import torch

    from adapt.model.load import load_model
    from adapt.model.tokenizer import load_tokenizer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        use_threads(shared_by=shared_by)
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code)
    torch.nn.Module.to(model, device)
    return Ready(model, tokenizer, device)


def call_on_device(function: Callable[..., T], resources: ResourcesConfig, *arguments: Any) -> T:
    """Calls a function in a Ray task that has one of the cluster's devices, and waits for it."""
    import ray

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

    from adapt.evaluate.losses import SAMPLE_SEED, Heldout, losses_by_domain, predictable_tokens
    from adapt.evaluate.masked_predictions import filled_masks, next_words
    from adapt.objective.masking import make

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
    from adapt.evaluate.intervals import TextLosses

    values = json.loads((folder / LOSSES_FILE).read_text())[corpus]
    if "sizes" not in values:
        return None
    return TextLosses(*(np.array(values[name]) for name in ("losses", "counts", "predictable", "sizes")))
