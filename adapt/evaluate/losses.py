"""Measures the held-out loss of a masked or causal model on each document (Don't Stop Pretraining, table 12).

The sample of documents is fixed, and the masks of a document depend only on its number in the corpus. All models with
the same tokenizer predict the same tokens in the same contexts, so two models can be compared document by document.

Some models have parts for each domain: adapters, prompts, masks or experts. They are measured with the parts of the
text's domain, with the parts of the nearest domain, and, for experts, with the mixture of all experts (arXiv
2108.05036). In the mixture, the probability of a document's t-th predicted token is sum_j w_j(t) p_j(x_t). p_j is the
prediction with the expert of domain j. w_j(t) is the posterior of the domain: a uniform prior times the product of
p_j(x_s) over the predictions s < t of the document, normalized. The paper has causal models only. Masked tokens are
treated as predicted from left to right, and all experts see the unmasked tokens of the document.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from adapt.config import Config, EvaluationConfig
from adapt.corpus import sample_order, token_shards
from adapt.evaluate.measurements import BITS_PER_NAT
from adapt.evaluate.while_training import BEFORE
from adapt.model.additions import domain_modules
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Corrupted, Objective
from adapt.objective.table import measured_objective
from adapt.support.schema import HELDOUT_GLOB
from adapt.train.points import Place
from adapt.train.stopping import PAST

SAMPLE_SEED = 0
"""Fixed seed of samples and masks, so that the losses of different runs can be compared."""


@dataclass(frozen=True)
class Heldout:
    """A fixed sample of held-out documents.

    Args:
        documents: numbers of the documents in their corpus.
        tokens: the token ids of each document.
        marks: further columns, keyed by name, with one boolean per token of each document.
        sizes: length of the text of each document [bytes]; None if a length is not known.
    """

    documents: list[int]
    tokens: list[np.ndarray]
    marks: dict[str, list[np.ndarray]] = field(default_factory=dict)
    sizes: list[int] | None = None

    @classmethod
    def sample(cls, folder: Path, evaluation: EvaluationConfig, marks: Iterable[str] = ()) -> "Heldout":
        """Reads documents in a fixed random order, up to the configured maximum numbers of documents and tokens."""
        stream = token_shards.TokenStream.open(folder, HELDOUT_GLOB)
        order = sample_order.permute(
            np.arange(min(stream.documents, evaluation.max_documents)), max(stream.documents, 1), SAMPLE_SEED, 0
        )
        numbers, tokens, total = [], [], 0
        for number in order.tolist()[: stream.documents]:
            numbers.append(number)
            tokens.append(stream.document(number))
            total += len(tokens[-1])
            if total >= evaluation.max_tokens:
                break
        columns = {mark: [stream.document(number, mark) for number in numbers] for mark in marks}
        sizes = [size for number in numbers if (size := stream.text_size(number)) is not None]
        return cls(numbers, tokens, columns, sizes if len(sizes) == len(numbers) else None)

    def only(self, indices: Iterable[int]) -> "Heldout":
        """Returns a sample with only the documents at these indices."""
        chosen = list(indices)
        marks = {mark: [values[index] for index in chosen] for mark, values in self.marks.items()}
        sizes = [self.sizes[index] for index in chosen] if self.sizes else None
        return Heldout([self.documents[n] for n in chosen], [self.tokens[n] for n in chosen], marks, sizes)

    def beginnings(self, documents: int, length: int) -> "Heldout":
        """Returns the first documents of the sample, cut after `length` tokens.

        The sizes in the result are estimates for the cut texts, in proportion to their numbers of tokens.
        """
        some = self.only(range(min(documents, len(self.tokens))))
        marks = {mark: [values[:length] for values in of] for mark, of in some.marks.items()}
        tokens = [values[:length] for values in some.tokens]
        sizes = some.sizes and [
            round(size * len(cut) / max(len(whole), 1))
            for size, cut, whole in zip(some.sizes, tokens, some.tokens, strict=True)
        ]
        return Heldout(some.documents, tokens, marks, sizes)

    def batches(self, sequence_length: int, micro_batch: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Splits documents into pieces of at most `sequence_length` tokens, and batches pieces of similar length.

        Yields:
            For each row, the index of its document in this sample [B], and the batch.
        """
        length = sequence_length
        pieces = [
            (index, piece, start, min(start + length, len(tokens)))
            for index, tokens in enumerate(self.tokens)
            for piece, start in enumerate(range(0, len(tokens), length))
        ]
        pieces.sort(key=lambda entry: entry[3] - entry[2])
        for first in range(0, len(pieces), micro_batch):
            chosen = pieces[first : first + micro_batch]
            tokens = _padded([self.tokens[index][start:stop] for index, _, start, stop in chosen])
            starts = torch.zeros(tokens.shape, dtype=torch.bool)
            starts[:, 0] = True
            marks = {
                name: _padded([values[index][start:stop] for index, _, start, stop in chosen])
                for name, values in self.marks.items()
            }
            lengths = torch.tensor([stop - start for *_, start, stop in chosen])
            address = torch.tensor([self.documents[index] * 2**20 + piece for index, piece, *_ in chosen])
            batch = Batch(tokens, lengths, torch.zeros_like(lengths), address, starts, marks)
            yield np.array([index for index, *_ in chosen]), batch


def _padded(rows: list[np.ndarray]) -> torch.Tensor:
    """Returns rows of unequal length as one tensor, padded with 0."""
    filled = np.zeros((len(rows), max(map(len, rows))), bool if rows[0].dtype == bool else np.int64)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(filled)


def predictable_tokens(objective: Objective, sample: Heldout, evaluation: EvaluationConfig) -> np.ndarray:
    """Counts the tokens of each document that the objective may predict, int64 [documents].

    For masked models, `heldout_losses` predicts only a part of these tokens.
    """
    counts = np.zeros(len(sample.tokens), np.int64)
    for index, batch in sample.batches(evaluation.sequence_length, evaluation.micro_batch):
        np.add.at(counts, index, objective.predictable(batch).sum(1).numpy())
    return counts


def heldout_losses(
    model: torch.nn.Module, objective: Objective, sample: Heldout, evaluation: EvaluationConfig, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the summed loss [nats] and the number of predictions of each document, float64 and int64 [documents]."""
    model.to(device).eval()
    with torch.inference_mode():
        batches = corrupted_batches(objective, sample, evaluation)
        return _losses_of_batches(model, objective, batches, len(sample.tokens), device)


def corrupted_batches(
    objective: Objective, sample: Heldout, evaluation: EvaluationConfig
) -> Iterator[tuple[np.ndarray, Corrupted]]:
    """Yields the masked batches of a sample, each with the document index of every row (see `Heldout.batches`)."""
    for index, batch in sample.batches(evaluation.sequence_length, evaluation.micro_batch):
        yield index, objective.corrupt(batch)


def prediction_losses(
    model: torch.nn.Module,
    objective: Objective,
    batches: Iterable[tuple[np.ndarray, Corrupted]],
    device: torch.device,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the losses of single predictions, batch by batch, of a model that is on the device and in evaluation mode.

    The order depends on the batches only, so that predictions of models with the same tokenizer can be compared.

    Yields:
        For each prediction, the index of its document in the sample, int64 [T], and its loss [nats], float64 [T].
    """
    for index, batch in batches:
        corrupted = batch.bound_for(device)
        values = objective.losses(model, corrupted).double().cpu().numpy()
        rows = objective.measured(corrupted).nonzero()[:, 0].numpy()
        yield index[rows], values


def _losses_of_batches(
    model: torch.nn.Module,
    objective: Objective,
    batches: Iterable[tuple[np.ndarray, Corrupted]],
    documents: int,
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    losses, counts = np.zeros(documents), np.zeros(documents, np.int64)
    for index, values in prediction_losses(model, objective, batches, device):
        np.add.at(losses, index, values)
        np.add.at(counts, index, 1)
    return losses, counts


@dataclass(frozen=True)
class DomainLosses:
    """Losses on held-out documents of one domain, with the model's parameters for this domain and for other domains."""

    losses: np.ndarray
    """Loss of each document, summed over its predictions [nats]."""
    counts: np.ndarray
    """Number of predictions of each document."""
    routed: float | None = None
    """Loss with the model's parameters for the domain nearest to each document [nats per predicted token]; None if the
    model has no separate parameters per domain."""
    routed_right: float | None = None
    """Share of documents whose nearest domain is their own; None if the model has no parts for their domain."""
    mixed: float | None = None
    """Loss with the mixture of all experts [nats per predicted token]; None if the model has no experts."""


def losses_by_domain(
    model: Any,
    objective: Objective,
    sample: Heldout,
    evaluation: EvaluationConfig,
    device: torch.device,
    domain: str | None = None,
) -> DomainLosses:
    """Measures the losses of documents with the model's parameters for their own and for the nearest domain.

    `domain` is the domain of the documents; None if it is not known. The model's parameters for this domain, such
    as adapters, are active afterwards.
    """
    known = domain_modules.domains_of(model)
    if known is None or not sample.tokens:
        return DomainLosses(*heldout_losses(model, objective, sample, evaluation, device))
    model.to(device).eval()
    nearest = domain_modules.nearest_domains(model, domain_modules.domain_vectors(model, sample.tokens))
    own, is_mixed = known.names.index(domain) if domain in known.names else None, domain_modules.has_experts(model)
    documents = np.arange(len(nearest))
    losses, counts = np.zeros((len(known.names), len(nearest))), np.zeros(len(nearest), np.int64)
    for number in range(len(known.names)):
        indices = documents if is_mixed or number == own else np.flatnonzero(nearest == number)
        if len(indices):
            domain_modules.choose_set(model, number)
            some = sample.only(indices.tolist())
            losses[number, indices], counts[indices] = heldout_losses(model, objective, some, evaluation, device)
    with_nearest = losses[nearest, documents]
    routed = _mean(with_nearest, counts)
    mixed = _mean(mixture_losses(losses), counts) if is_mixed else None
    if own is None:
        return DomainLosses(with_nearest, counts, routed, mixed=mixed)
    domain_modules.choose_set(model, own)
    return DomainLosses(losses[own], counts, routed, float((nearest == own).mean()), mixed)


def _mean(losses: np.ndarray, counts: np.ndarray) -> float | None:
    """Returns the mean loss [nats per predicted token]; None if nothing is predicted."""
    return float(losses.sum() / counts.sum()) if counts.any() else None


def mixture_losses(losses: np.ndarray) -> np.ndarray:
    """Returns the loss of each document with the mixture of all experts [nats], float64 [documents].

    The product over t of sum_j w_j(t) p_j(x_t) is sum_j prior_j prod_t p_j(x_t), because the normalization of w_j(t)
    cancels the preceding factor.

    Args:
        losses: loss of each document with each single expert, summed over predictions [nats], [experts, documents].
    """
    mixed: np.ndarray = np.log(len(losses)) - np.logaddexp.reduce(-losses.astype(np.float64), axis=0)
    return mixed


def loss_on(
    tokens: Sequence[np.ndarray],
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    device: torch.device,
) -> float:
    """Returns the mean held-out loss on some texts [nats per predicted token]; see `losses_on`."""
    losses, counts = losses_on(tokens, range(len(tokens)), model, tokenizer, config, device)
    return float(losses.sum() / max(counts.sum(), 1))


def losses_on(
    tokens: Sequence[np.ndarray],
    numbers: Sequence[int],
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the summed held-out loss [nats] and the number of predictions of each text, float64 and int64 [texts].

    The tokens include special tokens. The numbers are from 0 to 2^43 - 1, and determine the masks.
    """
    objective = make(measured_objective(config), tokenizer, SAMPLE_SEED)
    sample = Heldout(list(numbers), list(tokens))
    return heldout_losses(model, objective, sample, config.evaluation, device)


class TrainingLosses:
    """Measures held-out losses of a model in training, on all ranks of the training.

    Each rank measures a part of the documents, and the sums are added up. There are only two differences from
    `heldout_losses`: the losses are computed in the precision of the training, and only on the first documents of the
    sample, each cut to `evaluation.sequence_length` tokens.

    `folders` and `documents` are keyed by text as in `adapt.evaluate.while_training.Sampling`.
    """

    def __init__(self, place: Place, folders: Mapping[str, str], documents: Mapping[str, int]) -> None:
        config, evaluation = place.config, place.config.evaluation
        length = evaluation.sequence_length
        fitting = place.micro_batch * config.training.sequence_length  # this many tokens fit into a forward pass
        self._objective = make(measured_objective(config), place.tokenizer, SAMPLE_SEED)
        self._device, self._add_up = place.device, place.add_up
        self._parts: dict[str, list[tuple[np.ndarray, Corrupted]]] = {}
        """Batches of this rank, keyed by text. Their masks are the same at all measurements."""
        self._counted: dict[str, tuple[int, int]] = {}
        """For each text, the number of documents that this rank passes through the model, and how many of them count.

        All ranks run the same number of passes, so a rank with fewer documents repeats a document. The repeats do not
        count.
        """
        self._per_byte: dict[str, float] = {}
        for text, folder in folders.items():
            wanted = replace(evaluation, max_documents=documents[text], max_tokens=2**62)
            sample = Heldout.sample(Path(folder), wanted, self._objective.columns()).beginnings(documents[text], length)
            passed, own = place.share([len(tokens) for tokens in sample.tokens])
            self._counted[text] = len(passed), own
            # prefers few full passes, because a short pass of a small model takes almost as long as a full one
            rows = int(fitting / max(float(np.mean([len(tokens) for tokens in sample.tokens])), 1.0))
            own_evaluation = replace(evaluation, micro_batch=max(1, min(evaluation.micro_batch, rows)))
            self._parts[text] = list(corrupted_batches(self._objective, sample.only(passed), own_evaluation))
            if sample.sizes and self._objective.predicts_words:
                predictable = predictable_tokens(self._objective, sample, own_evaluation).sum()
                self._per_byte[text] = BITS_PER_NAT * float(predictable) / max(sum(sample.sizes), 1)

    def __call__(self, engine: Any) -> dict[str, float]:
        """Returns the losses [nats per predicted token] and the bits per byte. All ranks must call it together."""
        sums = torch.zeros(len(self._parts), 2, dtype=torch.float64)
        for number, (text, batches) in enumerate(self._parts.items()):
            passed, own = self._counted[text]
            with _parts_of_domain(getattr(engine, "module", engine), text.removeprefix(BEFORE)):
                losses, counts = _losses_of_batches(engine, self._objective, batches, passed, self._device)
            sums[number] = torch.tensor([losses[:own].sum(), counts[:own].sum()])
        self._add_up(sums)
        found = {text: total / count for text, (total, count) in zip(self._parts, sums.tolist(), strict=True) if count}
        past = {text.removeprefix(BEFORE): found.pop(text) for text in list(found) if text.startswith(BEFORE)}
        figures = {f"{text}_loss": loss for text, loss in found.items()}
        if past:
            figures |= {PAST: sum(past.values()) / len(past), **{f"{PAST}.{text}": past[text] for text in past}}
        bits = {text: loss * self._per_byte[text] for text, loss in found.items() if text in self._per_byte}
        return figures | {f"{text}_bits_per_byte": value for text, value in bits.items()}


@contextmanager
def _parts_of_domain(model: Any, domain: str) -> Iterator[None]:
    """Activates a model's parts for a domain, such as adapters, inside the block, if the model has such parts."""
    known = domain_modules.domains_of(model)
    if known is None or domain not in known.names:
        yield
        return
    before = [(sets, sets.chosen) for sets in domain_modules.sets_of(model)]
    domain_modules.choose_set(model, known.names.index(domain))
    try:
        yield
    finally:
        for sets, chosen in before:
            sets.chosen = chosen
