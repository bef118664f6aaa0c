"""Held-out loss (Don't Stop Pretraining, table 12), document by document: of masked words, or of next ones.

The sample, its masks and their replacements are functions of the document's number alone: every model that shares the
tokenizer predicts the same tokens in the same contexts, so differences between models are paired.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from adapt.config import EvaluationConfig
from adapt.corpus.batches.order import permute
from adapt.corpus.shards.tokens import TokenStream
from adapt.objective.base import Batch, Objective
from adapt.schema import HELDOUT_GLOB

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
