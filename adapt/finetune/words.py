"""Train only those rows of an embedding that training ever reads.

The table of words is a large part of a small model: 88% of BERT-tiny, half of a MiniLM. A task's train split uses a
fraction of it, and AdamW would read and write all of it in every step, to no effect: without a gradient, weight decay
alone acts, and takes less than 0.1% over a run. So rows that do not occur stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel


class TrainedWords(nn.Module):
    """An embedding that trains the rows of used words only; the other rows stay fixed.

    Args:
        table: float32 [V, H].
        used: ids of the rows to train.
    """

    place: Tensor
    """For each id the row in `rows` that it has while training, -1 for words that are not used: int64 [V]."""
    table: Tensor

    def __init__(self, table: Tensor, used: Tensor) -> None:
        super().__init__()
        place = torch.full((len(table),), -1, dtype=torch.int64, device=table.device)
        place[used] = torch.arange(len(used), device=table.device)
        self.register_buffer("place", place)
        self.register_buffer("table", table.detach())
        self.rows = nn.Parameter(table.detach()[used])

    def forward(self, ids: Tensor) -> Tensor:
        """Looks up ids, [...] to [..., H]. While training, only used words may be looked up."""
        places = self.place[ids]
        if self.training:
            return embedding(places, self.rows)
        known = (places >= 0)[..., None]
        return torch.where(known, embedding(places.clamp(min=0), self.rows), embedding(ids, self.table))

    def whole(self) -> nn.Embedding:
        """An ordinary embedding with the same vectors."""
        table = self.table.clone()
        table[self.place >= 0] = self.rows.detach()[self.place[self.place >= 0]]
        words: nn.Embedding = nn.Embedding.from_pretrained(table)
        return words


def train_used_words(encoder: PreTrainedModel, tokens: np.ndarray) -> None:
    """Replaces an encoder's word embedding, unless it does more than look up vectors."""
    table = encoder.get_input_embeddings()
    if type(table) is nn.Embedding:
        used = torch.from_numpy(np.unique(tokens)).to(table.weight.device)
        encoder.set_input_embeddings(TrainedWords(table.weight, used))


def train_all_words(encoder: PreTrainedModel) -> None:
    """Puts an ordinary word embedding, which holds what was learned, in place of the one that trains some rows."""
    words = encoder.get_input_embeddings()
    if isinstance(words, TrainedWords):
        encoder.set_input_embeddings(words.whole())
