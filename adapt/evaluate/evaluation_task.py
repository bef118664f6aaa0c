"""Runs stage `evaluate` in a Ray task: loads a model, measures its losses, and predicts words of example sentences.

Examples for people to read are sentences with one masked word or, for causal models, beginnings of sentences.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from adapt.evaluate import measure_model
from adapt.evaluate.losses import (
    SAMPLE_SEED,
    Heldout,
    corrupted_batches,
    losses_by_domain,
    predictable_tokens,
    prediction_losses,
)
from adapt.model.additions.domain_modules import domains_of
from adapt.model.load import load_model
from adapt.model.locate import Pretrained
from adapt.model.packing.packed import Packed
from adapt.model.sparse_prediction import predict_at
from adapt.model.tokenizer import load_tokenizer, sees_both_sides
from adapt.objective.masking import make, uniform
from adapt.objective.table import measured_objective, objective_options
from adapt.ray.runtime import hide_unreserved_gpus
from adapt.support.errors import ModelError
from adapt.train.worker_process import use_threads


@dataclass(frozen=True)
class Ready:
    """A loaded model, its tokenizer, and its device."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    device: torch.device


def ready(pretrained: Pretrained, causal: bool, shared_by: int = 1) -> Ready:
    """Loads a model onto the GPU that this Ray task has reserved, or onto the CPUs.

    `shared_by` is the number of training runs and tasks that share the cores of a machine, including this task.
    """
    device = device_of_task(shared_by)
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    model = load_model(pretrained.model, causal, pretrained.trust_remote_code)
    torch.nn.Module.to(model, device)
    return Ready(model, tokenizer, device)


def device_of_task(shared_by: int) -> torch.device:
    """Returns the GPU that the Ray task reserved. Without a GPU, returns the CPU and limits the number of threads."""
    hide_unreserved_gpus()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        use_threads(shared_by=shared_by)
    return device


@contextmanager
def token_counter(model: torch.nn.Module) -> Iterator[list[int]]:
    """Counts the tokens that a model processes inside the block, padding included. Yields a list with the count."""
    count = [0]

    def add(_: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        first = positional[0] if positional else named.get("input_ids")  # sentence-transformers passes a dict
        ids = first.get("input_ids") if isinstance(first, Mapping) else first
        if isinstance(ids, torch.Tensor):
            count[0] += ids.numel()

    handle = model.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()


def measure_corpora(measurement: measure_model.Measurement) -> measure_model.MeasuredCorpora:
    """Measures the losses on each corpus, and predicts example words of the first corpus that has suitable text."""
    config, pretrained = measurement.config, measurement.pretrained
    device = device_of_task(config.resources.trainings)
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    options = objective_options(config) if config.objective.kind == measured_objective(config).kind else None
    objective = make(measured_objective(config), tokenizer, SAMPLE_SEED, options)
    model = objective.load(pretrained, options, first=measurement.first)
    torch.nn.Module.to(model, device)
    losses: dict[str, dict[str, list[float]]] = {}
    routes: dict[str, measure_model.Routes] = {}
    figures: dict[str, dict[str, float]] = {}
    examples: list[dict[str, Any]] = []
    for name, corpus in measurement.corpora.items():
        sample = Heldout.sample(Path(corpus), config.evaluation, objective.columns())
        own = measurement.domains.get(name)
        found = losses_by_domain(model, objective, sample, config.evaluation, device, own)
        losses[name] = {"losses": found.losses.tolist(), "counts": found.counts.tolist()}
        figures[name] = objective.figures()
        if sample.sizes is not None and objective.predicts_words:
            predictable = predictable_tokens(objective, sample, config.evaluation)
            losses[name] |= {"predictable": predictable.tolist(), "sizes": list(sample.sizes)}
        routes[name] = found.routed, found.routed_right, found.mixed
        if not examples and objective.predicts_words:
            show = next_words if objective.is_causal else filled_masks
            examples = show(model, tokenizer, sample, config.evaluation.examples, device)
    return losses, routes, figures, examples


def measure_mean(measurement: measure_model.EnsembleMeasurement) -> dict[str, dict[str, list[float]]]:
    """Measures the losses of the mean prediction of an ensemble on each corpus.

    Raises:
        ModelError: a model has separate parameters for each domain.
    """
    config, first = measurement.config, measurement.models[0]
    device = device_of_task(config.resources.trainings)
    tokenizer = load_tokenizer(first.model, first.tokenizer, first.trust_remote_code)
    objective = make(measured_objective(config), tokenizer, SAMPLE_SEED)
    samples = {
        name: Heldout.sample(Path(corpus), config.evaluation, objective.columns())
        for name, corpus in measurement.corpora.items()
    }
    means = {name: measure_model.MeanProbability() for name in samples}
    documents: dict[str, np.ndarray] = {}
    model: Any = None
    for pretrained in measurement.models:
        model = None  # frees the previous model, so that one model is in memory at a time
        model = objective.load(pretrained)
        if domains_of(model) is not None:
            raise ModelError(
                f"ensemble.models: {pretrained.model} has separate parameters for each domain, so it has no single"
                " prediction to average",
                "name only models without adapters, prompts, masks or experts for single domains",
            )
        torch.nn.Module.to(model, device).eval()
        for name, sample in samples.items():
            with torch.inference_mode():
                batches = corrupted_batches(objective, sample, config.evaluation)
                parts = [*prediction_losses(model, objective, batches, device)]
            means[name].add(np.concatenate([losses for _, losses in parts]) if parts else np.zeros(0))
            documents[name] = np.concatenate([of for of, _ in parts]) if parts else np.zeros(0, np.int64)
    measured = {}
    for name, sample in samples.items():
        number = len(sample.tokens)
        totals = np.bincount(documents[name], weights=means[name].losses(), minlength=number)
        counts = np.bincount(documents[name], minlength=number)
        measured[name] = {"losses": totals.tolist(), "counts": counts.tolist()}
    return measured


TOP = 3
"""Number of most probable predictions in each example."""
SHORTEST, LONGEST = 10, 40
"""Minimum and maximum length of a document that is used as an example [tokens]."""
SHORTEST_PREFIX = 4
"""Minimum number of tokens before a word that a causal model has to predict."""


def filled_masks(
    model: Any, tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, device: torch.device
) -> list[dict[str, Any]]:
    """Masks one word in each of `count` documents, and returns the model's most probable predictions.

    The documents and words depend only on `sample`, so that the examples of two models can be compared.

    An example has the text with the mask, the masked word, and predictions as [word, probability].
    """
    examples = []
    shift = int(sees_both_sides(model.config))  # 1 for mntp: a token is predicted at the position before it
    for ids, position in _chosen(tokenizer, sample, count, first=1):
        masked = ids.clone()
        masked[position] = tokenizer.mask_token_id
        text = str(tokenizer.decode(masked if shift else masked[1:-1]))
        place = position - shift
        examples.append(_example(model.to(device), tokenizer, text, masked.to(device), place, int(ids[position])))
    return examples


def next_words(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, device: torch.device
) -> list[dict[str, Any]]:
    """Returns, for some documents, the text before a word, the word, and a causal model's most probable predictions."""
    examples = []
    for ids, position in _chosen(tokenizer, sample, count, first=SHORTEST_PREFIX):
        text = f"{tokenizer.decode(ids[:position], skip_special_tokens=True)} …"
        prefix = ids[:position].to(device)
        examples.append(_example(model.to(device), tokenizer, text, prefix, position - 1, int(ids[position])))
    return examples


def _chosen(
    tokenizer: PreTrainedTokenizerBase, sample: Heldout, count: int, first: int
) -> Iterator[tuple[Tensor, int]]:
    """Yields at most `count` short documents, int64 [tokens], each with the position (at least `first`) of a word."""
    for number, tokens in zip(sample.documents, sample.tokens, strict=True):
        ids = torch.tensor(tokens.astype("int64"))
        if not SHORTEST <= len(ids) <= LONGEST:
            continue
        if count > 0 and (positions := [position for position in _whole_words(ids, tokenizer) if position >= first]):
            count -= 1
            yield ids, positions[int(uniform(0, 0, torch.tensor([0]), torch.tensor([number]), 1) * len(positions))]


def _word(tokenizer: PreTrainedTokenizerBase, ids: Any) -> str:
    return str(tokenizer.decode(ids)).strip()


def _whole_words(ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the positions of words that have at least four letters and consist of a single token."""
    words = [_word(tokenizer, [i]) for i in ids.tolist()]
    pieces = tokenizer.convert_ids_to_tokens(ids.tolist())
    starts = [not piece.startswith("##") for piece in pieces]
    spaced = [piece.startswith(("Ġ", "▁")) for piece in pieces]
    starts = spaced if any(spaced) else starts
    return [
        position
        for position in range(1, len(ids) - 1)
        if words[position].isalpha() and len(words[position]) >= 4 and starts[position] and starts[position + 1]
    ]


@torch.inference_mode()
def _example(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, ids: Tensor, position: int, answer: int
) -> dict[str, Any]:
    """Returns an example: the text, the answer, and the model's predictions at one position."""
    logits = predict_at(model.eval(), Packed.single(ids), torch.tensor([position], device=ids.device))[0]
    probabilities, guesses = logits.float().softmax(-1).topk(TOP)
    return {
        "text": text,
        "answer": _word(tokenizer, [answer]),
        "guesses": [
            [_word(tokenizer, [guess]), round(probability, 4)]
            for guess, probability in zip(guesses.tolist(), probabilities.tolist(), strict=True)
        ],
    }
