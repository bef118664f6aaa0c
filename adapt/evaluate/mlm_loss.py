"""Held-out masked-LM loss (Don't Stop Pretraining, table 12), document by document.

The sample, its masks and their replacements are functions of the document's number alone: every model that shares the
tokenizer predicts the same tokens in the same contexts, so differences between models are paired.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adapt.config import EvaluationConfig
from adapt.corpus.order import permute
from adapt.corpus.tokens import TokenStream
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
    """

    documents: list[int]
    tokens: list[np.ndarray]

    @classmethod
    def sample(cls, folder: Path, evaluation: EvaluationConfig) -> "Heldout":
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
        return cls(numbers, tokens)

    def batches(self, sequence_length: int, micro_batch: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """Pieces of at most `sequence_length` tokens, similar lengths together.

        Yields:
            Index of each row's document in this sample [B], and the batch.
        """
        pieces = [
            (index, piece, tokens[start : start + sequence_length])
            for index, tokens in enumerate(self.tokens)
            for piece, start in enumerate(range(0, len(tokens), sequence_length))
        ]
        pieces.sort(key=lambda entry: len(entry[2]))
        for start in range(0, len(pieces), micro_batch):
            index, piece, tokens = zip(*pieces[start : start + micro_batch], strict=True)
            lengths = torch.tensor([len(row) for row in tokens])
            padded = torch.zeros(len(tokens), int(lengths.max()), dtype=torch.int64)
            for filled, row in zip(padded, tokens, strict=True):
                filled[: len(row)] = torch.from_numpy(row.astype(np.int64))
            address = torch.tensor([self.documents[i] for i in index]) * 2**20 + torch.tensor(piece)
            yield np.array(index), Batch(padded, lengths, torch.zeros_like(lengths), address)


def heldout_losses(
    model: torch.nn.Module, objective: Objective, sample: Heldout, evaluation: EvaluationConfig, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Summed loss [nats] and number of predictions of each document of a sample, float64 and int64 [documents]."""
    losses, counts = np.zeros(len(sample.tokens)), np.zeros(len(sample.tokens), np.int64)
    model.to(device).eval()
    with torch.inference_mode():
        for index, batch in sample.batches(evaluation.sequence_length, evaluation.micro_batch):
            corrupted = objective.corrupt(batch.to(device))
            values = objective.losses(model, corrupted).double().cpu().numpy()
            rows = corrupted.positions.nonzero()[:, 0].cpu().numpy()
            np.add.at(losses, index[rows], values)
            np.add.at(counts, index[rows], 1)
    return losses, counts
