"""The seam between training and what is trained: rows in, corrupted rows and a summed loss out."""

from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Batch:
    """Rows as read from the corpus, on the training device."""

    tokens: torch.Tensor
    """int64 [B, L]; positions from `lengths` on are filling."""
    lengths: torch.Tensor
    """int64 [B]."""
    epochs: torch.Tensor
    """int64 [B]: which pass over the corpus a row belongs to."""
    rows: torch.Tensor
    """int64 [B]: the rows' numbers in the corpus."""

    @classmethod
    def of(cls, columns: dict[str, Any], device: torch.device | str) -> "Batch":
        """From the arrays of `adapt.corpus.stream.Feed`."""
        names = ("tokens", "lengths", "epochs", "rows")
        return cls(*(torch.as_tensor(columns[name].astype("int64")).to(device, non_blocking=True) for name in names))

    def to(self, device: torch.device) -> "Batch":
        """The same rows on another device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))

    @property
    def real(self) -> torch.Tensor:
        """bool [B, L]: True where there is text and not filling."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]


@dataclass(frozen=True)
class Corrupted:
    """Rows as the model sees them, and what it is to predict."""

    input_ids: torch.Tensor
    """int64 [B, L]."""
    attention_mask: torch.Tensor
    """bool [B, L]."""
    positions: torch.Tensor
    """bool [B, L]: where a prediction is asked."""
    targets: torch.Tensor
    """int64 [T], T = positions.sum(): the tokens to predict, row by row."""

    def split(self, size: int) -> "list[Corrupted]":
        """The same rows in micro-batches of at most `size`."""
        per_row = self.positions.sum(1)
        counts = [int(part.sum()) for part in per_row.split(size)]
        parts = zip(
            self.input_ids.split(size),
            self.attention_mask.split(size),
            self.positions.split(size),
            self.targets.split(counts),
            strict=True,
        )
        return [Corrupted(*part) for part in parts]


class Objective(Protocol):
    """What the training loop needs of an objective."""

    def columns(self) -> tuple[str, ...]:
        """Columns beyond the tokens that tokenization must write (word starts, entity spans)."""
        ...

    def corrupt(self, batch: Batch) -> Corrupted:
        """Draws what is to be predicted, by (seed, epoch, row)."""
        ...

    def losses(self, model: torch.nn.Module, corrupted: Corrupted) -> torch.Tensor:
        """Cross entropy of each prediction [nats], float32 [T]."""
        ...
