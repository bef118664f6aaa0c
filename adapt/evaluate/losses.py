"""Held-out loss of a model, document by document (Don't Stop Pretraining, table 12), of masked words or of next words.

The sample, its masks and their replacements are functions of the document's number only. Every model that shares the
tokenizer predicts the same tokens in the same contexts, so differences between models are paired.

Models with parts for each domain are measured with the text's own parts, with those of the nearest domain, and, where
they have experts, with the mixture of all experts (DEMix, arXiv 2108.05036). In the mixture, the probability of a
document's t-th predicted token is sum_j w_j(t) p_j(x_t). p_j is the prediction with the expert of domain j. w_j(t) is
the posterior of the domain: the prior times the product of p_j(x_s) over the predictions s < t of the document. The
prior is the same for all domains. The paper has causal models. For masked words, those to the left count as known once
they are predicted, and the unmasked words of the document are known to all experts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from adapt.config import Config, EvaluationConfig
from adapt.corpus.sample_order import permute
from adapt.corpus.token_shards import TokenStream
from adapt.model.additions.domain_modules import choose_set, domain_vectors, domains_of, nearest_domains
from adapt.model.additions.experts import has_experts
from adapt.objective.masking import make
from adapt.objective.objective import Batch, Objective
from adapt.objective.table import measured_objective
from adapt.support.schema import HELDOUT_GLOB

SAMPLE_SEED = 0
"""Fixed, so that figures of different runs can be compared."""


@dataclass(frozen=True)
class Heldout:
    """A fixed sample of held-out documents.

    Args:
        documents: numbers of the documents in their corpus.
        tokens: the tokens of each.
        marks: further columns by name, for each document a truth value a token.
        sizes: length of the text of each [bytes]; None where that is not known.
    """

    documents: list[int]
    tokens: list[np.ndarray]
    marks: dict[str, list[np.ndarray]] = field(default_factory=dict)
    sizes: list[int] | None = None

    @classmethod
    def sample(cls, folder: Path, evaluation: EvaluationConfig, marks: Iterable[str] = ()) -> "Heldout":
        """The first documents in a fixed random order, up to the configured numbers of documents and tokens."""
        stream = TokenStream.open(folder, HELDOUT_GLOB)
        order = permute(
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

    def only(self, places: Iterable[int]) -> "Heldout":
        """Some of the documents, by their places in the sample."""
        chosen = list(places)
        marks = {mark: [values[place] for place in chosen] for mark, values in self.marks.items()}
        sizes = [self.sizes[place] for place in chosen] if self.sizes else None
        return Heldout([self.documents[n] for n in chosen], [self.tokens[n] for n in chosen], marks, sizes)

    def batches(self, sequence_length: int, micro_batch: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Pieces of at most `sequence_length` tokens, similar lengths together.

        Yields:
            Index of each row's document in this sample [B], and the batch.
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
    """Rows of unequal length, filled up with 0."""
    filled = np.zeros((len(rows), max(map(len, rows))), bool if rows[0].dtype == bool else np.int64)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(filled)


def predictable_tokens(objective: Objective, sample: Heldout, evaluation: EvaluationConfig) -> np.ndarray:
    """How many tokens of each document could be predicted, int64 [documents]; `heldout_losses` asks for some."""
    found = np.zeros(len(sample.tokens), np.int64)
    for index, batch in sample.batches(evaluation.sequence_length, evaluation.micro_batch):
        np.add.at(found, index, objective.predictable(batch).sum(1).numpy())
    return found


def heldout_losses(
    model: torch.nn.Module, objective: Objective, sample: Heldout, evaluation: EvaluationConfig, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Summed loss [nats] and number of predictions of each document of a sample, float64 and int64 [documents]."""
    losses, counts = np.zeros(len(sample.tokens)), np.zeros(len(sample.tokens), np.int64)
    model.to(device).eval()
    with torch.inference_mode():
        for index, batch in sample.batches(evaluation.sequence_length, evaluation.micro_batch):
            corrupted = objective.corrupt(batch).bound_for(device)
            values = objective.losses(model, corrupted).double().cpu().numpy()
            rows = corrupted.positions.nonzero()[:, 0].numpy()
            np.add.at(losses, index[rows], values)
            np.add.at(counts, index[rows], 1)
    return losses, counts


@dataclass(frozen=True)
class DomainLosses:
    """Losses on a held-out sample of documents."""

    losses: np.ndarray
    """Summed over the predictions of each document [nats]."""
    counts: np.ndarray
    """Predictions of each document."""
    routed: float | None = None
    """Loss with the parts of the nearest domain [nats a predicted token]; None where the model has no such parts."""
    routed_right: float | None = None
    """The share of documents that are nearest to their own domain; None where the model has no parts for it."""
    mixed: float | None = None
    """Loss with the mixture of all experts [nats a predicted token]; None where the model has no experts."""


def losses_by_domain(
    model: Any,
    objective: Objective,
    sample: Heldout,
    evaluation: EvaluationConfig,
    device: torch.device,
    domain: str | None = None,
) -> DomainLosses:
    """The losses of documents, as `heldout_losses` has them.

    Args:
        model: afterwards the parts in use are those of the domain, if it has some.
        objective: of the loss.
        sample: the documents.
        evaluation: settings.
        device: where to measure.
        domain: that the documents belong to; None if it is not known.
    """
    known = domains_of(model)
    if known is None or not sample.tokens:
        return DomainLosses(*heldout_losses(model, objective, sample, evaluation, device))
    model.to(device).eval()
    nearest = nearest_domains(model, domain_vectors(model, sample.tokens))
    own, is_mixed = known.names.index(domain) if domain in known.names else None, has_experts(model)
    documents = np.arange(len(nearest))
    losses, counts = np.zeros((len(known.names), len(nearest))), np.zeros(len(nearest), np.int64)
    for number in range(len(known.names)):
        places = documents if is_mixed or number == own else np.flatnonzero(nearest == number)
        if len(places):
            choose_set(model, number)
            some = sample.only(places.tolist())
            losses[number, places], counts[places] = heldout_losses(model, objective, some, evaluation, device)
    taken = losses[nearest, documents]
    routed = _mean(taken, counts)
    mixed = _mean(mixture_losses(losses), counts) if is_mixed else None
    if own is None:
        return DomainLosses(taken, counts, routed, mixed=mixed)
    choose_set(model, own)
    return DomainLosses(losses[own], counts, routed, float((nearest == own).mean()), mixed)


def _mean(losses: np.ndarray, counts: np.ndarray) -> float | None:
    """Nats a predicted token; None where nothing is predicted."""
    return float(losses.sum() / counts.sum()) if counts.any() else None


def mixture_losses(losses: np.ndarray) -> np.ndarray:
    """The loss of each document with the mixture of all experts [nats], float64 [documents].

    The product over t of the sums above is sum_j prior_j prod_t p_j(x_t), since what a weight is divided by is the sum
    before it.

    Args:
        losses: with each expert by itself, summed over the predictions of a document, [experts, documents].
    """
    found: np.ndarray = np.log(len(losses)) - np.logaddexp.reduce(-losses.astype(np.float64), axis=0)
    return found


def loss_on(
    tokens: Sequence[np.ndarray],
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    device: torch.device,
) -> float:
    """Mean held-out loss on some texts [nats a predicted token]; see `losses_on`."""
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
    """Summed held-out loss [nats] and number of predictions of each text, float64 and int64 [texts].

    Args:
        tokens: of each text, with special tokens.
        numbers: of the texts, from 0 to 2^43 - 1; a text's number decides its masks.
        model: a language model.
        tokenizer: its own.
        config: `evaluation` and `objective`.
        device: to compute on.
    """
    objective = make(measured_objective(config), tokenizer, SAMPLE_SEED)
    sample = Heldout(list(numbers), list(tokens))
    return heldout_losses(model, objective, sample, config.evaluation, device)
